//! Reads and writes PyTorch `.pt` and `.pth` files: a ZIP archive with a pickle and one file per storage, or (read only)
//! the legacy format. Nothing is executed; written files load with `torch.load(…, weights_only=True)`.

use crate::arrays::{self, UnpackLimit};
use crate::legacy_torch;
use crate::pickle::{self, Pickle, PickleObject, PickleValue, TorchTensor};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_data::format::zip::{StoredZipEntry, ZipArchive, archive};
use systole_ir::{DType, Literal, Result, ResultExt, ensure, err};

/// Maximum nesting of dictionaries.
const DEPTH: usize = 32;
/// Maximum name length in bytes, since many dictionaries may share a key.
const NAME: usize = 512;
/// Keys under which training scripts store a model's weights.
const HOLDERS: [&str; 8] =
    ["state_dict", "model_state_dict", "model", "net", "network", "weights", "params", "module"];
/// Name prefixes added by wrappers.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// Reads the named tensors of a file, in order. Names in nested dictionaries are joined by dots.
///
/// # Errors
/// If it is damaged, contains other objects than tensors and plain values, or needs more than eight times its size.
pub(crate) fn read(bytes: &[u8]) -> Result<Vec<(String, Literal)>> {
    if legacy_torch::is_one(bytes) {
        let mut budget = UnpackLimit::of(bytes.len());
        let (pickle, read) = legacy_torch::read(bytes, &mut budget)?;
        return tensors(&pickle, StorageReader { archive: None, read }, &mut budget);
    }
    let archive = ZipArchive::open(bytes)?;
    let mut budget = UnpackLimit::of(bytes.len());
    let name = archive.names().find(|n| *n == "data.pkl" || n.ends_with("/data.pkl")).map(str::to_string);
    let name = name.ok_or_else(|| {
        err!(Data, "the ZIP archive is not a PyTorch file")
            .because("the archive has no data.pkl")
            .hint("save the weights with torch.save(model.state_dict(), \"weights.pt\")")
    })?;
    let folder = name.trim_end_matches("data.pkl").to_string();
    check_byte_order(&archive, &folder)?;
    let text = archive.read(&name, budget.left())?.unwrap_or_default();
    let pickle = pickle::read(&text).at(|| name.clone())?;
    tensors(&pickle, StorageReader { archive: Some((archive, folder)), read: HashMap::new() }, &mut budget)
}

fn tensors(
    pickle: &Pickle,
    mut storages: StorageReader<'_>,
    budget: &mut UnpackLimit,
) -> Result<Vec<(String, Literal)>> {
    let mut found = Vec::new();
    for (name, tensor) in named_tensors(pickle)? {
        let value = storages.tensor(&tensor, budget).at(|| format!("tensor {name}"))?;
        found.push((name, value));
    }
    Ok(found)
}

fn check_byte_order(archive: &ZipArchive<'_>, folder: &str) -> Result<()> {
    match archive.read(&format!("{folder}byteorder"), 64)? {
        Some(order) if order != b"little" => Err(err!(Data, "the PyTorch file stores big-endian numbers")
            .hint("save the file again on a little-endian machine")),
        _ => Ok(()),
    }
}

struct StorageReader<'a> {
    /// The archive and its top folder; `None` for a legacy file, whose storages are all read.
    archive: Option<(ZipArchive<'a>, String)>,
    read: HashMap<String, Arc<Vec<u8>>>,
}

impl StorageReader<'_> {
    fn bytes(&mut self, key: &str, budget: &mut UnpackLimit) -> Result<Arc<Vec<u8>>> {
        if let Some(bytes) = self.read.get(key) {
            return Ok(bytes.clone());
        }
        let Some((archive, folder)) = &self.archive else {
            return Err(pickle::wrong(format!("the file has no storage {key}")));
        };
        let name = format!("{folder}data/{key}");
        let bytes = archive.read(&name, budget.left())?;
        let bytes = bytes.ok_or_else(|| pickle::wrong(format!("the archive has no {name}")))?;
        budget.take(bytes.len())?;
        let bytes = Arc::new(bytes);
        self.read.insert(key.into(), bytes.clone());
        Ok(bytes)
    }

    /// Returns the elements of a view, in order.
    fn tensor(&mut self, t: &TorchTensor, budget: &mut UnpackLimit) -> Result<Literal> {
        let dtype = arrays::dtype(t.storage.dtype).unwrap_or(DType::U8);
        let (size, total) = (dtype.size(), arrays::bytes_of(dtype, &t.shape)?);
        budget.take(total)?;
        let bytes = self.bytes(&t.storage.key, budget)?;
        if t.storage.elements.checked_mul(size) != Some(bytes.len()) {
            let has = format!("a storage of {} elements has {} bytes", t.storage.elements, bytes.len());
            return Err(pickle::wrong(has));
        }
        if total == 0 {
            return arrays::literal(dtype, &t.shape, &[]);
        }
        let (first, elements) = t.storage.view.unwrap_or((0, t.storage.elements));
        if first.checked_add(elements).is_none_or(|end| end > t.storage.elements) {
            return Err(pickle::wrong(format!(
                "a view of {elements} elements from {first} exceeds its storage"
            )));
        }
        let last = t
            .shape
            .iter()
            .zip(&t.strides)
            .try_fold(t.offset, |sum, (n, stride)| sum.checked_add((n - 1).checked_mul(*stride)?));
        if last.is_none_or(|last| last >= elements) {
            return Err(pickle::wrong(format!(
                "a view of sizes {:?}, strides {:?} from {} exceeds its storage of {}",
                t.shape, t.strides, t.offset, elements
            )));
        }
        let mut out = Vec::with_capacity(total);
        gather(&bytes, size, first + t.offset, &t.shape, &t.strides, &mut out);
        arrays::literal(dtype, &t.shape, &out)
    }
}

/// Appends the elements of a view with checked bounds.
fn gather(bytes: &[u8], size: usize, at: usize, shape: &[usize], strides: &[usize], out: &mut Vec<u8>) {
    match (shape, strides) {
        ([n], [1]) => out.extend(&bytes[at * size..(at + n) * size]),
        ([n, shape @ ..], [stride, strides @ ..]) => {
            (0..*n).for_each(|i| gather(bytes, size, at + i * stride, shape, strides, out));
        }
        _ => out.extend(&bytes[at * size..(at + 1) * size]),
    }
}

/// Returns a model's tensors from a saved object: a state_dict, or a dictionary that contains one.
fn named_tensors(pickle: &Pickle) -> Result<Vec<(String, Arc<TorchTensor>)>> {
    let mut root = &pickle.root;
    for _ in 0..DEPTH {
        let Some(dict) = dict(pickle, root) else { break };
        if dict.iter().any(|(_, v)| matches!(v, PickleValue::Tensor(_))) {
            break;
        }
        let holder = HOLDERS.iter().find_map(|key| {
            let held = dict.iter().find(|(k, _)| matches!(k, PickleValue::Text(t) if &**t == *key));
            held.map(|(_, v)| v).filter(|v| self::dict(pickle, v).is_some())
        });
        match holder {
            Some(inner) => root = inner,
            None => break,
        }
    }
    let mut found = Vec::new();
    collect(pickle, root, "", DEPTH, &mut HashSet::new(), &mut found)?;
    if found.is_empty() {
        return Err(err!(Data, "the file contains no tensors")
            .hint("save the weights with torch.save(model.state_dict(), \"weights.pt\")"));
    }
    for wrapper in WRAPPERS {
        if found.iter().all(|(name, _)| name.starts_with(wrapper)) {
            found.iter_mut().for_each(|(name, _)| *name = name[wrapper.len()..].to_string());
        }
    }
    let mut names = HashSet::new();
    match found.iter().find(|(name, _)| !names.insert(name.as_str())) {
        Some((name, _)) => Err(pickle::wrong(format!("duplicate tensor {name}"))),
        None => Ok(found),
    }
}

fn dict<'a>(pickle: &'a Pickle, value: &PickleValue) -> Option<&'a [(PickleValue, PickleValue)]> {
    match value {
        PickleValue::Object(at) => match pickle.objects.get(*at)? {
            PickleObject::Dict(dict) => Some(dict),
            _ => None,
        },
        _ => None,
    }
}

/// Collects tensors; each dictionary is visited once, which stops cycles.
fn collect(
    pickle: &Pickle,
    value: &PickleValue,
    name: &str,
    depth: usize,
    seen: &mut HashSet<usize>,
    found: &mut Vec<(String, Arc<TorchTensor>)>,
) -> Result<()> {
    match value {
        PickleValue::Tensor(t) if !name.is_empty() => {
            if found.last().is_some_and(|(last, _)| last == name) {
                return Err(pickle::wrong(format!("duplicate tensor {name}")));
            }
            found.push((name.into(), t.clone()));
        }
        PickleValue::Object(at) => {
            let Some(dict) = dict(pickle, value).filter(|_| seen.insert(*at)) else { return Ok(()) };
            ensure!(depth != 0, pickle::wrong(format!("dictionaries are nested more than {DEPTH} deep")));
            for (key, value) in dict {
                if let PickleValue::Text(key) = key {
                    if name.len() + key.len() > NAME {
                        return Err(pickle::wrong(format!("a name has more than {NAME} bytes")));
                    }
                    let name = if name.is_empty() { key.to_string() } else { format!("{name}.{key}") };
                    collect(pickle, value, &name, depth - 1, seen, found)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns the parts of a `.pt` file with these tensors as a state_dict.
pub(crate) fn parts(tensors: &[(String, Literal)]) -> Result<Vec<Cow<'_, [u8]>>> {
    let mut pickle = b"\x80\x02ccollections\nOrderedDict\n)R(".to_vec();
    let mut files = Vec::new();
    for (i, (name, value)) in tensors.iter().enumerate() {
        put_text(&mut pickle, name);
        put_tensor(&mut pickle, i, value)?;
        files.push(StoredZipEntry {
            name: format!("archive/data/{i}"),
            head: Vec::new(),
            data: value.bytes(),
        });
    }
    pickle.extend(b"u.");
    let head = |name: &str, bytes: Vec<u8>| StoredZipEntry {
        name: format!("archive/{name}"),
        head: bytes,
        data: &[],
    };
    let mut all = vec![head("data.pkl", pickle), head("byteorder", b"little".to_vec())];
    all.extend(files);
    all.push(head("version", b"3\n".to_vec()));
    Ok(archive(all))
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_number(out: &mut Vec<u8>, n: usize) {
    out.extend([0x8a, 8]);
    out.extend((n as i64).to_le_bytes());
}

fn put_sizes(out: &mut Vec<u8>, sizes: &[usize]) {
    out.push(b'(');
    sizes.iter().for_each(|n| put_number(out, *n));
    out.push(b't');
}

/// Writes `torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())`.
fn put_tensor(out: &mut Vec<u8>, key: usize, value: &Literal) -> Result<()> {
    let class = pickle::storage_class(value.dtype())?;
    out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    put_text(out, "storage");
    out.extend(format!("ctorch\n{class}\n").as_bytes());
    put_text(out, &key.to_string());
    put_text(out, "cpu");
    put_number(out, value.ty().elements());
    out.extend(b"tQ");
    let dims = value.shape().dims();
    let mut strides = vec![1; dims.len()];
    (1..dims.len()).rev().for_each(|i| strides[i - 1] = strides[i] * dims[i].max(1));
    put_number(out, 0);
    put_sizes(out, dims);
    put_sizes(out, &strides);
    out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    Ok(())
}
