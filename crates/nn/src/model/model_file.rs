//! Model files: one `.safetensors` file with arrays, metadata strings (architecture, step, … as JSON) and checksums.
//!
//! Files are written atomically. Loading checks every length, offset and checksum and executes nothing.
//!
//! Layout: 8 bytes of header length (little endian), a JSON header padded with spaces, the arrays' bytes without gaps.
//! The header starts with its own CRC32C, computed with the eight digits as zeros; each array has one in the metadata.

use crate::json::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::json;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use systole_data::file_system::{AtomicFile, FileSystem, OsFileSystem, write_atomically, write_unpublished};
use systole_data::format::ModelFormat;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, ResultExt, Shape, TensorType, ensure, err};

/// Format version of model files that this build writes and accepts.
pub const FORMAT_VERSION: &str = "1";

/// Start of the header, up to the digits of its checksum.
const PREFIX: &str = r#"{"__metadata__":{"header_crc32c":""#;
const DIGITS: usize = 8;
const METADATA: &str = "__metadata__";
const RESERVED: [&str; 3] = ["header_crc32c", "format", "format_version"];
const SUM_OF: &str = "crc32c:";

/// Maximum header length, as in the safetensors library.
const MAX_HEADER: u64 = 100_000_000;

/// Contents of a model file: named arrays and named strings.
///
/// ```
/// use systole_nn::ModelFile;
/// use systole_ir::Literal;
/// let path = std::env::temp_dir().join(format!("doc-{}.safetensors", std::process::id()));
/// let mut file = ModelFile::default();
/// file.tensors.push(("weights/dense/bias".into(), Literal::from_slice([2], &[1f32, 2.]).unwrap()));
/// file.metadata.insert("step".into(), "300".into());
/// file.save(&path).unwrap();
/// assert_eq!(ModelFile::load(&path).unwrap(), file);
/// std::fs::remove_file(path).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelFile {
    /// Arrays by unique name (`weights/dense/kernel`, `optimizer/momentum/dense/kernel`), in order.
    pub tensors: Vec<(String, Literal)>,
    /// Strings by name. The names `format`, `format_version`, `header_crc32c` and `crc32c:…` are reserved.
    pub metadata: BTreeMap<String, String>,
}

impl ModelFile {
    /// Returns an array of the model file by name.
    pub fn get(&self, name: &str) -> Option<&Literal> {
        self.tensors.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    /// Writes the model file atomically: at every instant `path` holds the complete old file or the complete new one.
    ///
    /// # Errors
    /// If the disk is full, the folder is missing or write-protected, or a name is used twice.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_to(&OsFileSystem, path.as_ref())
    }

    /// Like [`ModelFile::save`], on the given file system; follows symbolic links.
    pub(crate) fn save_to<F: FileSystem>(&self, files: &F, path: &Path) -> Result<()> {
        // A symbolic link stays, and its target is replaced.
        let target = if path.is_symlink() { fs::canonicalize(path).ok() } else { None };
        self.save_with(files, target.as_deref().unwrap_or(path))
    }

    /// Like [`ModelFile::save`], on the given file system.
    pub fn save_with<F: FileSystem>(&self, files: &F, path: &Path) -> Result<()> {
        self.with_parts(|parts| write_atomically(files, path, parts)).at(|| path.display().to_string())?
    }

    /// Like [`ModelFile::save`], without syncing: [`AtomicFile::publish`] does that, and gives the file its name.
    pub(crate) fn write_unpublished(&self, path: &Path) -> Result<AtomicFile<OsFileSystem>> {
        self.with_parts(|parts| write_unpublished(OsFileSystem, path, parts))
            .at(|| path.display().to_string())?
    }

    /// Returns the bytes that [`ModelFile::save`] writes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.with_parts(|parts| parts.concat())
    }

    /// Passes the file's parts, in order, to `f`.
    fn with_parts<T>(&self, f: impl FnOnce(&[&[u8]]) -> T) -> Result<T> {
        let order = self.storage_order();
        let header = self.header(&order)?;
        let length = (header.len() as u64).to_le_bytes();
        let mut parts: Vec<&[u8]> = vec![&length, &header];
        parts.extend(order.iter().map(|&i| self.tensors[i].1.bytes()));
        Ok(f(&parts))
    }

    /// Reads and verifies a model file.
    ///
    /// # Errors
    /// If it cannot be read, or its contents differ from what was written.
    pub fn load(path: impl AsRef<Path>) -> Result<ModelFile> {
        let path = path.as_ref();
        let read = |e: io::Error| {
            let hint = match e.kind() {
                io::ErrorKind::NotFound => "check the path",
                io::ErrorKind::PermissionDenied => "check the file's permissions",
                _ => "check the disk, or copy the file again",
            };
            Error::io("cannot read", path, e).hint(hint)
        };
        let mut file = fs::File::open(path).map_err(read)?;
        let about = file.metadata().map_err(read)?;
        if !about.is_file() {
            return Err(err!(Io, "cannot read {}", path.display())
                .because("the path is not a regular file")
                .hint("pass the path of a model file"));
        }
        ModelFile::read(&mut file, about.len()).at(|| path.display().to_string())
    }

    /// Reads and verifies a model file of `length` bytes.
    pub fn read(source: &mut dyn Read, length: u64) -> Result<ModelFile> {
        let header = read_header(source, length)?;
        check_header_sum(&header)?;
        let ModelFileHeader { mut metadata, entries } = parse_header(&header)?;
        check_format(&mut metadata)?;
        let data_start = 8 + header.len() as u64;
        let layout = TensorLayout::check(&entries, data_start, length)?;
        let mut sums: HashMap<String, String> = HashMap::new();
        metadata.retain(|key, value| match key.strip_prefix(SUM_OF) {
            Some(name) => sums.insert(name.to_string(), std::mem::take(value)).is_some(),
            None => true,
        });
        let mut values: Vec<Option<Literal>> = vec![None; entries.len()];
        for &i in &layout.order {
            let (name, ty) = (&entries[i].0, layout.types[i].clone());
            let begin = data_start + entries[i].1.data_offsets.0;
            let value = read_tensor(source, ty, sums.remove(name)).at(|| {
                format!("tensor {name}, bytes {begin}..{}", data_start + entries[i].1.data_offsets.1)
            })?;
            values[i] = Some(value);
        }
        if let Some(name) = sums.keys().next() {
            return Err(damaged(format!("there is a checksum for tensor {name}, but the tensor is missing")));
        }
        let tensors = entries.into_iter().zip(values).filter_map(|((name, _), value)| Some((name, value?)));
        Ok(ModelFile { tensors: tensors.collect(), metadata })
    }

    /// Returns the storage order of the arrays: wide elements first, so that all are aligned.
    fn storage_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tensors.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(self.tensors[i].1.dtype().size()));
        order
    }

    fn header(&self, order: &[usize]) -> Result<Vec<u8>> {
        self.check_names()?;
        let mut metadata = serde_json::Map::new();
        metadata.insert("header_crc32c".into(), json!("0".repeat(DIGITS)));
        metadata.insert("format".into(), json!("systole"));
        metadata.insert("format_version".into(), json!(FORMAT_VERSION));
        metadata.extend(self.metadata.iter().map(|(k, v)| (k.clone(), json!(v))));
        let sum_of =
            |(name, value): &(String, Literal)| (format!("{SUM_OF}{name}"), json!(hex(crc(value.bytes()))));
        metadata.extend(self.tensors.iter().map(sum_of));
        let mut begins = vec![0usize; self.tensors.len()];
        let mut end = 0;
        for &i in order {
            begins[i] = end;
            end += self.tensors[i].1.ty().bytes();
        }
        let mut root = serde_json::Map::new();
        root.insert(METADATA.into(), metadata.into());
        for ((name, value), begin) in self.tensors.iter().zip(begins) {
            let ty = value.ty();
            let offsets = [begin, begin + ty.bytes()];
            let entry =
                json!({ "dtype": dtype_name(ty.dtype), "shape": ty.shape.dims(), "data_offsets": offsets });
            root.insert(name.clone(), entry);
        }
        let mut text = serde_json::Value::Object(root).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let sum = hex(crc(&text));
        text[PREFIX.len()..PREFIX.len() + DIGITS].copy_from_slice(sum.as_bytes());
        Ok(text)
    }

    fn check_names(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Config, what).hint("choose another name"));
        let mut seen = HashSet::new();
        for (name, _) in &self.tensors {
            if name == METADATA || !seen.insert(name) {
                return refuse(format!("two tensors are named `{name}`"));
            }
        }
        match self.metadata.keys().find(|k| RESERVED.contains(&k.as_str()) || k.starts_with(SUM_OF)) {
            Some(key) => refuse(format!("the metadata key `{key}` is reserved by the file format")),
            None => Ok(()),
        }
    }
}

fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

fn hex(sum: u32) -> String {
    format!("{sum:08x}")
}

/// Element types and their safetensors names.
const DTYPES: [(DType, &str); 13] = [
    (DType::Bool, "BOOL"),
    (DType::I8, "I8"),
    (DType::I16, "I16"),
    (DType::I32, "I32"),
    (DType::I64, "I64"),
    (DType::U8, "U8"),
    (DType::U16, "U16"),
    (DType::U32, "U32"),
    (DType::U64, "U64"),
    (DType::F16, "F16"),
    (DType::BF16, "BF16"),
    (DType::F32, "F32"),
    (DType::F64, "F64"),
];

fn dtype_name(dtype: DType) -> &'static str {
    DTYPES.iter().find(|(d, _)| *d == dtype).map_or("", |(_, name)| name)
}

fn damaged(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, what).hint("the file is damaged or not a model file: copy or save it again")
}

fn cut_short(expected: u64, found: u64) -> Error {
    damaged("the model file is truncated")
        .because(format!("expected a file of {expected} bytes, got {found}"))
}

/// Reads the header's bytes. Its length is checked against the file's before anything is allocated.
fn read_header(source: &mut dyn Read, length: u64) -> Result<Vec<u8>> {
    ensure!(length >= 8, cut_short(8, length));
    let mut bytes = [0u8; 8];
    read_exactly(source, &mut bytes)?;
    let header = u64::from_le_bytes(bytes);
    if header > MAX_HEADER || header > length - 8 {
        let mut start = bytes.to_vec();
        source.take(8).read_to_end(&mut start).map_err(unreadable)?;
        if let Some(e) = other_format(&start) {
            return Err(e);
        }
        return Err(damaged("invalid header length").at("bytes 0..8").because(format!(
            "the header has {header} bytes, but the file has only {} after the length, and at most {MAX_HEADER} are allowed",
            length - 8
        )));
    }
    let mut text = vec![0u8; header as usize];
    read_exactly(source, &mut text)?;
    // The first bytes of another format may be a valid length.
    let start: Vec<u8> = bytes.iter().chain(text.iter().take(8)).copied().collect();
    match other_format(&start) {
        Some(e) => Err(e),
        None => Ok(text),
    }
}

/// Returns the error for a model file of another program.
fn other_format(start: &[u8]) -> Option<Error> {
    let format = ModelFormat::of(start)?;
    Some(err!(Data, "this is {}, not a Systole model file", format.name()).hint(format.hint()))
}

fn read_exactly(source: &mut dyn Read, bytes: &mut [u8]) -> Result<()> {
    source.read_exact(bytes).map_err(unreadable)
}

fn unreadable(e: io::Error) -> Error {
    err!(Io, "cannot read the model file to its end").because(e.to_string())
}

fn check_header_sum(header: &[u8]) -> Result<()> {
    let digits = PREFIX.len()..PREFIX.len() + DIGITS;
    let Some(stored) = header.get(digits.clone()).filter(|_| header.starts_with(PREFIX.as_bytes())) else {
        let why = format!("its header does not start with {PREFIX}");
        if header.starts_with(b"{") {
            let what =
                "this is a safetensors file of another program, or a damaged one, not a Systole model file";
            return Err(Error::new(ErrorKind::Data, what)
                .at("byte 8")
                .because(why)
                .hint("convert it first: systole import FILE --out model.safetensors"));
        }
        return Err(damaged("this is not a Systole model file").at("byte 8").because(why));
    };
    let mut blank = header.to_vec();
    blank[digits].fill(b'0');
    let found = hex(crc(&blank));
    if found.as_bytes() == stored {
        return Ok(());
    }
    let stored = String::from_utf8_lossy(stored);
    Err(damaged("the header is damaged")
        .at(format!("bytes 8..{}", 8 + header.len()))
        .because(format!("expected the checksum CRC32C {stored}, got {found}")))
}

/// Header entry of one array, as in the safetensors format.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Header with entries in order. Duplicate names are errors, which a map would hide.
struct ModelFileHeader {
    metadata: BTreeMap<String, String>,
    entries: Vec<(String, TensorEntry)>,
}

fn parse_header(text: &[u8]) -> Result<ModelFileHeader> {
    serde_json::from_slice(text).map_err(|e| {
        // The header is a single line, so its column is an offset.
        damaged("cannot parse the header of the model file")
            .at(format!("byte {}", 8 + e.column().saturating_sub(1)))
            .because(e.to_string())
    })
}

impl<'de> Deserialize<'de> for ModelFileHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<ModelFileHeader, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = ModelFileHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<ModelFileHeader, A::Error> {
        let mut header = ModelFileHeader { metadata: BTreeMap::new(), entries: Vec::new() };
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            ensure!(seen.insert(name.clone()), A::Error::custom(format!("`{name}` occurs twice")));
            match name.as_str() {
                METADATA => header.metadata = map.next_value::<StringMap>()?.0,
                _ => header.entries.push((name, map.next_value()?)),
            }
        }
        Ok(header)
    }
}

/// A JSON object of strings that rejects duplicate names.
struct StringMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<StringMap, D::Error> {
        struct StringsVisitor;
        impl<'de> Visitor<'de> for StringsVisitor {
            type Value = StringMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<StringMap, A::Error> {
                let mut strings = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    if strings.insert(name.clone(), value).is_some() {
                        return Err(A::Error::custom(format!("`{name}` occurs twice")));
                    }
                }
                Ok(StringMap(strings))
            }
        }
        deserializer.deserialize_map(StringsVisitor)
    }
}

/// Checks and removes the format's own metadata, except the tensors' checksums.
fn check_format(metadata: &mut BTreeMap<String, String>) -> Result<()> {
    let [_, format, version] = RESERVED.map(|key| metadata.remove(key).unwrap_or_default());
    ensure!(format == "systole", damaged(format!("unknown file format `{format}`, expected `systole`")));
    if version != FORMAT_VERSION {
        return Err(err!(Unsupported, "unsupported format version `{version}`, expected {FORMAT_VERSION}")
            .hint("load the file with the Systole version that wrote it"));
    }
    Ok(())
}

/// Types of all arrays and their storage order.
struct TensorLayout {
    types: Vec<TensorType>,
    order: Vec<usize>,
}

impl TensorLayout {
    /// Checks that the arrays cover the bytes after the header exactly: in range, no overlap, no gap.
    fn check(entries: &[(String, TensorEntry)], data_start: u64, length: u64) -> Result<TensorLayout> {
        let types = entries
            .iter()
            .map(|(name, entry)| tensor_type(entry).at(|| format!("header, tensor {name}")))
            .collect::<Result<Vec<_>>>()?;
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by_key(|&i| entries[i].1.data_offsets);
        let mut at = 0;
        for &i in &order {
            let (name, TensorEntry { data_offsets: (begin, end), .. }) = &entries[i];
            if *begin != at {
                let what =
                    if *begin < at { "overlaps the tensor before it" } else { "leaves a gap before it" };
                return Err(damaged(format!("tensor {name} {what}"))
                    .at(format!("header, tensor {name}"))
                    .because(format!(
                        "the array's data should start at offset {at}, but starts at {begin}"
                    )));
            }
            at = *end;
        }
        let expected = data_start.saturating_add(at);
        ensure!(expected <= length, cut_short(expected, length));
        if expected < length {
            return Err(damaged("there is data after the last tensor")
                .at(format!("byte {expected}"))
                .because(format!("expected {expected} bytes of array data, got {length}")));
        }
        Ok(TensorLayout { types, order })
    }
}

/// Returns the type of an array; its size must match its offsets.
fn tensor_type(entry: &TensorEntry) -> Result<TensorType> {
    let Some((dtype, _)) = DTYPES.iter().find(|(_, name)| *name == entry.dtype) else {
        let what = format!("element type `{}` is not supported", entry.dtype);
        let known: Vec<&str> = DTYPES.iter().map(|(_, name)| *name).collect();
        return Err(Error::new(ErrorKind::Data, what)
            .hint(format!("use one of these element types: {}", known.join(", "))));
    };
    let dims: Option<Vec<usize>> = entry.shape.iter().map(|&d| usize::try_from(d).ok()).collect();
    let shape = dims.map(Shape::from);
    let bytes = shape.as_ref().and_then(Shape::checked_elements).and_then(|n| n.checked_mul(dtype.size()));
    let (begin, end) = entry.data_offsets;
    match (shape, bytes, end.checked_sub(begin)) {
        (Some(shape), Some(bytes), Some(span)) if bytes as u64 == span => Ok(TensorType::new(*dtype, shape)),
        (_, bytes, span) => {
            let needs = bytes.map_or("too many bytes to count".into(), |n| format!("{n} bytes"));
            let has = span.map_or("a negative number of bytes".into(), |n| format!("{n} bytes"));
            Err(damaged("the size of a tensor does not match its shape").because(format!(
                "an array of type {}{:?} needs {needs}, but offsets {begin}..{end} hold {has}",
                entry.dtype, entry.shape
            )))
        }
    }
}

fn read_tensor(source: &mut dyn Read, ty: TensorType, sum: Option<String>) -> Result<Literal> {
    let sum = sum.ok_or_else(|| damaged("the tensor's checksum is missing"))?;
    let mut value = Literal::zeros(ty);
    read_exactly(source, value.bytes_mut())?;
    let found = hex(crc(value.bytes()));
    if found != sum {
        return Err(damaged("the tensor is damaged")
            .because(format!("expected the checksum CRC32C {sum}, got {found}")));
    }
    if value.dtype() == DType::Bool && value.bytes().iter().any(|&b| b > 1) {
        return Err(damaged("expected a bool of 0 or 1"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use systole_data::file_system::{FaultInjectingFileSystem, InjectedFault};

    fn model(value: f32) -> ModelFile {
        let kernel = Literal::from_slice([2, 2], &[value; 4]).unwrap();
        let steps = Literal::from_slice([], &[7i64]).unwrap();
        let tensors = vec![("weights/kernel".into(), kernel), ("steps".into(), steps)];
        ModelFile { tensors, metadata: BTreeMap::from([("step".into(), "7".into())]) }
    }

    /// Creates a separate folder for one test, containing an earlier model.
    fn folder(name: &str) -> (PathBuf, PathBuf) {
        let dir = std::env::temp_dir().join(format!("systole-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("model.safetensors");
        model(1.0).save(&path).unwrap();
        (dir, path)
    }

    fn entries(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn whatever_happens_to_any_call_the_file_is_whole_and_nothing_is_left_behind() {
        let (dir, path) = folder("faults");
        let healthy = FaultInjectingFileSystem::never();
        model(2.0).save_with(&healthy, &path).unwrap();
        let calls = healthy.calls();
        // Length, header and two arrays. The rename comes after the data is synced to disk.
        assert_eq!(calls, ["create", "write", "write", "write", "write", "sync", "rename", "sync_dir"]);
        let full = InjectedFault::Error(io::ErrorKind::StorageFull);
        for fault in [full, InjectedFault::Io, InjectedFault::Interrupted, InjectedFault::Short] {
            for n in 0..calls.len() {
                model(1.0).save(&path).unwrap();
                let saved = model(2.0).save_with(&FaultInjectingFileSystem::at(n, fault), &path);
                let is_error = matches!(fault, InjectedFault::Error(_) | InjectedFault::Io);
                assert_eq!(saved.is_err(), is_error, "{fault:?} in call {n}");
                if let Err(e) = saved {
                    let e = e.to_string();
                    assert!(e.contains("model.safetensors") && e.contains("try: "), "{e}");
                }
                // Only the last call, syncing the folder, comes after the new file is in place.
                let is_new = !is_error || n + 1 == calls.len();
                let expected = if is_new { model(2.0) } else { model(1.0) };
                assert_eq!(ModelFile::load(&path).unwrap(), expected, "{fault:?} in call {n}");
                assert_eq!(entries(&dir), ["model.safetensors"], "{fault:?} in call {n}");
            }
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
