//! Reads PyTorch files of before version 1.6: pickles and storages one after another, not in a ZIP archive.
//!
//! The file has a magic number, the protocol version, properties of the writing machine, the saved object, and the keys of
//! its storages, each as a pickle; then for each key the number of elements and the elements. Nothing is executed.

use crate::arrays::{self, UnpackLimit};
use crate::pickle::{self, Pickle, PickleObject, PickleValue, TorchStorage};
use std::collections::HashMap;
use std::sync::Arc;
use systole_ir::{DType, Result, ResultExt, err};

/// PyTorch's magic number 0x1950a86a20f9469cfc6c, as its pickle has it.
const MAGIC: [u8; 12] = [0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The only version that was ever written.
const VERSION: i64 = 1001;

/// Whether a file starts with a pickle of the magic number; newer pickle protocols put a frame before it.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(32)];
    start.first() == Some(&0x80) && start.windows(MAGIC.len()).any(|w| w == MAGIC)
}

/// Storages by key.
type Storages = HashMap<String, Arc<Vec<u8>>>;

/// Reads the saved object and its storages.
///
/// # Errors
/// If the file is damaged, or has other objects than tensors and plain values.
pub(crate) fn read(bytes: &[u8], budget: &mut UnpackLimit) -> Result<(Pickle, Storages)> {
    let mut file = LegacyFile { bytes, at: 0 };
    file.pickle("the magic number")?;
    let version = file.pickle("the protocol version")?;
    match version.root {
        PickleValue::Int(VERSION) => {}
        _ => return Err(pickle::wrong(format!("the protocol version is not {VERSION}"))),
    }
    check_machine(&file.pickle("the system information")?)?;
    let object = file.pickle("the saved object")?;
    let keys = file.pickle("the storage keys")?;
    let storages = file.storages(&object, &keys, budget)?;
    Ok((object, storages))
}

fn check_machine(about: &Pickle) -> Result<()> {
    let PickleValue::Object(at) = &about.root else { return Ok(()) };
    let Some(PickleObject::Dict(entries)) = about.objects.get(*at) else { return Ok(()) };
    let is_big = entries.iter().any(|(key, value)| {
        matches!((key, value), (PickleValue::Text(key), PickleValue::Bool(false)) if &**key == "little_endian")
    });
    match is_big {
        true => Err(err!(Data, "the PyTorch file stores big-endian numbers")
            .hint("save it again on a little-endian machine")),
        false => Ok(()),
    }
}

struct LegacyFile<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl LegacyFile<'_> {
    fn pickle(&mut self, what: &str) -> Result<Pickle> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let (pickle, length) = pickle::read_first(rest).at(|| what.to_string())?;
        self.at += length;
        Ok(pickle)
    }

    fn take(&mut self, n: usize) -> Result<&[u8]> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| pickle::wrong(format!("the file ends at byte {}", self.bytes.len())))?;
        let part = &self.bytes[self.at..end];
        self.at = end;
        Ok(part)
    }

    /// Reads all storages, in the order of their keys; the object has their element types.
    fn storages(&mut self, object: &Pickle, keys: &Pickle, budget: &mut UnpackLimit) -> Result<Storages> {
        let known: HashMap<&str, &TorchStorage> =
            object.storages.iter().map(|s| (s.key.as_str(), &**s)).collect();
        let mut all = Storages::new();
        for key in text_list(keys)? {
            let storage =
                known.get(key).ok_or_else(|| pickle::wrong(format!("storage {key} is not used")))?;
            let count = self.take(8)?.iter().rev().fold(0u64, |sum, &b| sum << 8 | u64::from(b));
            if usize::try_from(count) != Ok(storage.elements) {
                let why = format!("storage {key} has {count} elements, expected {}", storage.elements);
                return Err(pickle::wrong(why));
            }
            let dtype = arrays::dtype(storage.dtype).unwrap_or(DType::U8);
            let size = storage.elements.checked_mul(dtype.size());
            let size = size.ok_or_else(|| pickle::wrong(format!("storage {key} is too large")))?;
            budget.take(size)?;
            let bytes = self.take(size).at(|| format!("storage {key}"))?;
            if all.insert(key.to_string(), Arc::new(bytes.to_vec())).is_some() {
                return Err(pickle::wrong(format!("storage {key} is listed twice")));
            }
        }
        Ok(all)
    }
}

fn text_list(keys: &Pickle) -> Result<Vec<&str>> {
    let wrong = || pickle::wrong("the storage keys are not a list of strings");
    let PickleValue::Object(at) = &keys.root else { return Err(wrong()) };
    let Some(PickleObject::List(list)) = keys.objects.get(*at) else { return Err(wrong()) };
    list.iter()
        .map(|value| match value {
            PickleValue::Text(key) => Ok(&**key),
            _ => Err(wrong()),
        })
        .collect()
}
