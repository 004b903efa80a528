//! Reads and writes named arrays: NumPy `.npz` and `.npy`, and `.safetensors`. Element types have MLIR names (`f32`,
//! `complex<f32>`, `i4`), as far as the format supports them.

mod safetensors;
mod stored_array;

use std::borrow::Cow;
use std::path::Path;
pub use stored_array::StoredArray;
use stored_array::{ElementFormat, KNOWN};
use systole_base::{Error, Result, err};
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_data::format::npy::{self, RawNpyArray};

/// File format of named arrays: npz, npy or safetensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayFileFormat {
    /// NumPy archive.
    Npz,
    /// safetensors, without checksums.
    Safetensors,
}

impl ArrayFileFormat {
    /// Returns the array file format for a file name.
    ///
    /// # Errors
    /// If it ends in neither .npz nor .safetensors.
    pub fn of(path: &Path) -> Result<ArrayFileFormat> {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("npz") => Ok(ArrayFileFormat::Npz),
            Some("safetensors") => Ok(ArrayFileFormat::Safetensors),
            _ => Err(err!(Config, "unknown file type {}: expected .npz or .safetensors", path.display())
                .hint("name the file .npz for NumPy, or .safetensors")),
        }
    }

    /// Checks that the array file format supports an element type.
    ///
    /// # Errors
    /// If it does not; names a format that does.
    pub fn check(self, element: &str) -> Result<()> {
        let known = KNOWN.iter().find(|k| k.0 == element);
        match (self, known) {
            (ArrayFileFormat::Npz, Some(_))
            | (ArrayFileFormat::Safetensors, Some(ElementFormat(_, _, _, Some(_)))) => Ok(()),
            _ => {
                let name = if self == ArrayFileFormat::Npz { ".npz" } else { ".safetensors" };
                let e = err!(Unsupported, "{name} files do not support elements of type {element}");
                Err(e.hint("write a .npz file, or convert the elements in the program"))
            }
        }
    }
}

/// Reads the arrays of a file; the format is detected from its content. The array of an `.npy` file has an empty name.
///
/// # Errors
/// If the file cannot be read, is damaged or truncated, or has another format; each with its position.
pub fn read(path: &Path) -> Result<Vec<(String, StoredArray)>> {
    let bytes = systole_data::input_file::read(path).map_err(|e| {
        Error::io("cannot read", path, e)
            .hint("check the path of the array file (.npz, .npy or .safetensors)")
    })?;
    from_bytes(&path.display().to_string(), &bytes)
}

/// Like [`read`], from bytes in memory; `name` is for messages.
///
/// # Errors
/// See [`read`].
pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Vec<(String, StoredArray)>> {
    if bytes.starts_with(b"\x93NUMPY") {
        let x = npy::raw_from_bytes(name, bytes)?;
        return Ok(vec![(String::new(), of_numpy(x).map_err(|e| e.at(name))?)]);
    }
    if bytes.starts_with(b"PK") {
        let arrays = npy::raw_npz_from_bytes(name, bytes)?.into_iter();
        let one = |(key, x): (String, RawNpyArray)| {
            let read = of_numpy(x).map_err(|e| e.at(format!("{name}, {key}")))?;
            Ok((key, read))
        };
        return arrays.map(one).collect();
    }
    safetensors::read(bytes).map_err(|e| e.at(name))
}

fn of_numpy(x: RawNpyArray) -> Result<StoredArray> {
    let kind = |descr: &str| descr.trim_start_matches(['<', '|', '=']).to_string();
    let size = x.dims.iter().product::<usize>();
    let size = x.bytes.len().checked_div(size);
    // ml_dtypes stores its one-byte types, including int4, as V1.
    let is_narrow =
        |k: &ElementFormat| kind(&x.descr) == "V1" && k.1 == 1 && k.0.starts_with(['i', 'u']) && narrow(k.0);
    let is_it = |k: &&ElementFormat| kind(k.2) == kind(&x.descr) || is_narrow(k);
    let elements: Vec<&'static str> = KNOWN.iter().filter(is_it).map(|k| k.0).collect();
    if elements.is_empty() || size.is_some_and(|n| KNOWN.iter().any(|k| k.0 == elements[0] && k.1 != n)) {
        return Err(err!(Data, "unsupported NumPy element type {}", x.descr)
            .hint("convert the array to another element type before saving"));
    }
    Ok(StoredArray { elements, dims: x.dims, bytes: x.bytes })
}

/// Whether an integer type has fewer bits than a byte.
fn narrow(element: &str) -> bool {
    element.ends_with('4') && !element.ends_with("64") || element.ends_with('2') && element.len() < 4
}

/// Creates a stored array from its bytes, for [`write()`].
///
/// # Errors
/// If the element type is unknown.
pub fn stored(element: &str, dims: &[usize], bytes: Vec<u8>) -> Result<StoredArray> {
    let known = KNOWN.iter().find(|k| k.0 == element);
    let known =
        known.ok_or_else(|| err!(Unsupported, "array files do not support elements of type {element}"))?;
    // Sign-extends narrow integers, which other readers read as whole bytes.
    let extended = |bits: u32| move |b: u8| ((b << (8 - bits)) as i8 >> (8 - bits)) as u8;
    let bytes = match element {
        "i4" => bytes.into_iter().map(extended(4)).collect(),
        "i2" => bytes.into_iter().map(extended(2)).collect(),
        _ => bytes,
    };
    Ok(StoredArray { elements: vec![known.0], dims: dims.to_vec(), bytes })
}

/// Writes named arrays to a file atomically.
///
/// # Errors
/// If the format does not support an element type, or the disk is full or read-only.
pub fn write(path: &Path, format: ArrayFileFormat, arrays: Vec<(String, StoredArray)>) -> Result<()> {
    for (name, x) in &arrays {
        let element = x.elements.first().copied();
        let element = element.ok_or_else(|| err!(Bug, "an array has no element type"));
        element
            .and_then(|element| format.check(element))
            .map_err(|e| e.at(name.clone()).at(path.display().to_string()))?;
    }
    match format {
        ArrayFileFormat::Npz => {
            let raw = |(name, x): (String, StoredArray)| {
                let descr = KNOWN.iter().find(|k| x.elements.first() == Some(&k.0)).map_or("", |k| k.2);
                (name, RawNpyArray { descr: descr.into(), dims: x.dims, bytes: x.bytes })
            };
            let arrays: Vec<(String, RawNpyArray)> = arrays.into_iter().map(raw).collect();
            put(path, &npy::npz_parts(&arrays)?)
        }
        ArrayFileFormat::Safetensors => put(path, &safetensors::parts(&arrays)),
    }
}

fn put(path: &Path, parts: &[Cow<'_, [u8]>]) -> Result<()> {
    write_atomically(&OsFileSystem, path, &parts.iter().map(AsRef::as_ref).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_type() -> Vec<(String, StoredArray)> {
        let one = |k: &ElementFormat| {
            let bytes = (0..6 * k.1).map(|i| u8::from(i % 5 == 0 && k.1 > 1)).collect();
            (format!("x {}", k.0), stored(k.0, &[2, 3], bytes).unwrap())
        };
        KNOWN.iter().map(one).collect()
    }

    #[test]
    fn every_type_comes_back_from_both_formats() {
        let dir = std::env::temp_dir().join(format!("systole-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for format in [ArrayFileFormat::Npz, ArrayFileFormat::Safetensors] {
            let mut arrays = every_type();
            arrays.retain(|(_, x)| format.check(x.elements[0]).is_ok());
            let path = dir.join("x");
            write(&path, format, arrays.clone()).unwrap();
            let mut read = read(&path).unwrap();
            read.sort_by_key(|(name, _)| arrays.iter().position(|(n, _)| n == name));
            assert_eq!(read.len(), arrays.len());
            for ((_, a), (name, b)) in read.iter().zip(&arrays) {
                assert!(a.elements.contains(&b.elements[0]), "{name}: {:?}", a.elements);
                assert_eq!((&a.dims, &a.bytes), (&b.dims, &b.bytes), "{name}");
            }
        }
        let wide = vec![("y".to_string(), stored("complex<f64>", &[1], vec![0; 16]).unwrap())];
        let told = write(&dir.join("y"), ArrayFileFormat::Safetensors, wide).unwrap_err().to_string();
        assert!(told.contains("complex<f64>") && told.contains(".npz"), "{told}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn names_of_files_say_the_format() {
        assert_eq!(ArrayFileFormat::of(Path::new("a/B.NPZ")).unwrap(), ArrayFileFormat::Npz);
        assert_eq!(ArrayFileFormat::of(Path::new("a.safetensors")).unwrap(), ArrayFileFormat::Safetensors);
        assert!(ArrayFileFormat::of(Path::new("a.txt")).unwrap_err().to_string().contains("a.txt"));
    }
}
