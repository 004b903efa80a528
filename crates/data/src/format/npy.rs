//! NumPy's `.npy` (one array) and `.npz` (a ZIP of arrays).
//!
//! Reads both byte orders and Fortran order, writes little-endian C order.
//!
//! The header is parsed as text with three keys, never evaluated; pickled objects are rejected.

use crate::file_system::{OsFileSystem, write_atomically};
use crate::input_file;
use std::path::Path;
use systole_base::{DType, Error, Literal, Result, ResultExt, Shape, TensorType, ensure, err};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads an array from an `.npy` file.
///
/// # Errors
/// `Io` if it cannot be read; `Data` if it is damaged, truncated, or of an unsupported type.
pub fn read(path: impl AsRef<Path>) -> Result<Literal> {
    let path = path.as_ref();
    let bytes = input_file::read(path).map_err(|e| Error::io("cannot read", path, e))?;
    from_bytes(&path.display().to_string(), &bytes)
}

/// Content of an `.npy` file.
pub enum NpyArray {
    /// Numbers or booleans.
    Numbers(Literal),
    /// Strings, and the array's shape.
    Texts(Vec<String>, Vec<usize>),
}

#[cfg(feature = "formats")]
mod npz {
    use super::{
        Error, Literal, NpyArray, NpyHeader, Path, RawNpyArray, Result, ResultExt, from_bytes, head,
        input_file, raw_from_bytes, split,
    };
    use crate::format::zip;
    use std::borrow::Cow;

    /// Reads an `.npz` file: names (without `.npy`) and arrays, in the file's order.
    ///
    /// # Errors
    /// See [`super::read`].
    pub fn read_npz(path: impl AsRef<Path>) -> Result<Vec<(String, Literal)>> {
        let path = path.as_ref();
        let bytes = input_file::read(path).map_err(|e| Error::io("cannot read", path, e))?;
        npz_from_bytes(&path.display().to_string(), &bytes)
    }

    /// Parses the bytes of an `.npz` file; `name` is used in messages.
    pub fn npz_from_bytes(name: &str, bytes: &[u8]) -> Result<Vec<(String, Literal)>> {
        all(name, bytes, from_bytes)
    }

    type ParseArrayFn<T> = fn(&str, &[u8]) -> Result<T>;

    fn all<T>(name: &str, bytes: &[u8], read: ParseArrayFn<T>) -> Result<Vec<(String, T)>> {
        let array = |(entry, data): (String, Vec<u8>)| {
            let x = read(&format!("{name}, {entry}"), &data)?;
            Ok((entry.strip_suffix(".npy").unwrap_or(&entry).to_string(), x))
        };
        zip::entries(bytes).at(|| name.to_string())?.into_iter().map(array).collect()
    }

    /// Like [`raw_from_bytes`], for every array of an `.npz` file, in the file's order.
    ///
    /// # Errors
    /// Like [`raw_from_bytes`]; also if the archive is damaged.
    pub fn raw_npz_from_bytes(name: &str, bytes: &[u8]) -> Result<Vec<(String, RawNpyArray)>> {
        all(name, bytes, raw_from_bytes)
    }

    /// Returns consecutive parts of an `.npz` file with these arrays, as numpy.savez writes it.
    ///
    /// # Errors
    /// If an array has too many dimensions.
    pub fn npz_parts<'a>(arrays: &'a [(String, RawNpyArray)]) -> Result<Vec<Cow<'a, [u8]>>> {
        let entry = |(name, x): &'a (String, RawNpyArray)| -> Result<zip::StoredZipEntry<'a>> {
            Ok(zip::StoredZipEntry {
                name: format!("{name}.npy"),
                head: head(&x.descr, &x.dims)?,
                data: &x.bytes,
            })
        };
        Ok(zip::archive(arrays.iter().map(entry).collect::<Result<_>>()?))
    }

    /// Reads every array of an `.npz` file, in the file's order; unreadable arrays yield their error.
    ///
    /// # Errors
    /// If the file cannot be read, or the archive is damaged.
    pub fn read_npz_each(path: impl AsRef<Path>) -> Result<Vec<(String, Result<NpyArray>)>> {
        let path = path.as_ref();
        let bytes = input_file::read(path).map_err(|e| Error::io("cannot read", path, e))?;
        let name = path.display().to_string();
        let array = |(entry, data): (String, Vec<u8>)| {
            let read = texts(&data).map_or_else(|| from_bytes(&name, &data).map(NpyArray::Numbers), Ok);
            (entry.strip_suffix(".npy").unwrap_or(&entry).to_string(), read)
        };
        Ok(zip::entries(&bytes).at(|| name.clone())?.into_iter().map(array).collect())
    }

    /// Reads a string array of NumPy's types `U` (UCS-4) and `S` (bytes); `None`: it has another type, or is damaged.
    fn texts(bytes: &[u8]) -> Option<NpyArray> {
        let NpyHeader { descr, dims, data, .. } = split(bytes).ok()?;
        let (order, kind) = descr.split_at_checked(1)?;
        let (kind, length) = kind.split_at_checked(1)?;
        let (length, count) = (length.parse::<usize>().ok()?, dims.iter().product::<usize>());
        let size = length.checked_mul(if kind == "U" { 4 } else { 1 })?;
        if !["U", "S"].contains(&kind) || size.checked_mul(count)? != data.len() {
            return None;
        }
        let wide = |unit: &[u8; 4]| match order {
            ">" => u32::from_be_bytes(*unit),
            _ => u32::from_le_bytes(*unit),
        };
        let one = |i: usize| -> Option<String> {
            let cell = &data[i * size..(i + 1) * size];
            let text: String = match kind {
                "U" => {
                    cell.as_chunks::<4>().0.iter().map(|u| char::from_u32(wide(u))).collect::<Option<_>>()?
                }
                _ => String::from_utf8(cell.to_vec()).ok()?,
            };
            Some(text.trim_end_matches('\0').to_string())
        };
        let all = (0..count).map(one).collect::<Option<Vec<_>>>()?;
        Some(NpyArray::Texts(all, dims))
    }
}
#[cfg(feature = "formats")]
pub use npz::*;

/// Returns an error: `.npz` archives need the feature `formats`.
#[cfg(not(feature = "formats"))]
pub fn npz_parts(_: &[(String, RawNpyArray)]) -> Result<Vec<std::borrow::Cow<'_, [u8]>>> {
    Err(crate::missing_formats(".npz archives"))
}

/// Parses the bytes of an `.npy` file; `name` is used in messages.
pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    parse(bytes).at(|| name.to_string())
}

/// Array of any NumPy type of fixed size, including types without a [`DType`]: complex numbers, and raw bytes (`V2`),
/// which NumPy uses for types unknown to it, such as bf16.
#[derive(Clone, Debug, PartialEq)]
pub struct RawNpyArray {
    /// NumPy type string, little endian: `<f4`, `<c8`, `|V1`.
    pub descr: String,
    /// Shape of the array.
    pub dims: Vec<usize>,
    /// Elements, little endian and row-major.
    pub bytes: Vec<u8>,
}

/// Parses the bytes of an `.npy` file of any type of fixed size; `name` is used in messages.
///
/// # Errors
/// If it is damaged, truncated, or contains strings or objects.
pub fn raw_from_bytes(name: &str, bytes: &[u8]) -> Result<RawNpyArray> {
    raw(bytes).at(|| name.to_string())
}

fn raw(bytes: &[u8]) -> Result<RawNpyArray> {
    let NpyHeader { descr, is_fortran, dims, data } = split(bytes)?;
    let refused = || {
        err!(Data, "NumPy type `{descr}` is not supported").hint("convert the array to numbers or booleans")
    };
    let (order, kind) = descr.split_at_checked(1).ok_or_else(refused)?;
    let (letter, size) = kind.split_at_checked(1).ok_or_else(refused)?;
    let size = size.parse::<usize>().ok().filter(|n| (1..=64).contains(n)).ok_or_else(refused)?;
    ensure!("biufcV".contains(letter) && "<>|=".contains(order), refused());
    if dims.iter().chain([&size]).try_fold(1usize, |n, d| n.checked_mul(*d)) != Some(data.len()) {
        return Err(wrong(&format!(
            "its header specifies {kind} of {dims:?}, but {} bytes follow",
            data.len()
        )));
    }
    let mut bytes = data.to_vec();
    if order == ">" && letter != "V" {
        // The two parts of a complex number are byte-swapped separately.
        let unit = if letter == "c" { size / 2 } else { size };
        bytes.chunks_exact_mut(unit.max(1)).for_each(<[u8]>::reverse);
    }
    if is_fortran {
        bytes = from_fortran(&bytes, &dims, size);
    }
    let order = if letter == "V" || size == 1 { "|" } else { "<" };
    Ok(RawNpyArray { descr: format!("{order}{kind}"), dims, bytes })
}

/// Parsed `.npy` file.
struct NpyHeader<'a> {
    descr: String,
    is_fortran: bool,
    dims: Vec<usize>,
    data: &'a [u8],
}

fn wrong(why: &str) -> Error {
    err!(Data, "invalid .npy file")
        .because(why)
        .hint("save the array again with numpy.save, allow_pickle=False")
}

fn split(bytes: &[u8]) -> Result<NpyHeader<'_>> {
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| wrong("it does not start with \\x93NUMPY"))?;
    let (len, start) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 4),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 6),
        _ => return Err(wrong("its version is not 1, 2 or 3")),
    };
    let header =
        rest.get(start..).and_then(|r| r.get(..len)).ok_or_else(|| wrong("it ends within its header"))?;
    let header = std::str::from_utf8(header).map_err(|_| wrong("its header is not text"))?;
    let (descr, is_fortran, dims) = header_of(header).ok_or_else(|| wrong("its header cannot be parsed"))?;
    Ok(NpyHeader { descr, is_fortran, dims, data: &rest[start + len..] })
}

fn parse(bytes: &[u8]) -> Result<Literal> {
    let NpyHeader { descr, is_fortran, dims, data } = split(bytes)?;
    let (dtype, is_big) = dtype_of(&descr).ok_or_else(|| {
        err!(Data, "NumPy type `{descr}` is not supported")
            .hint("save the file again with type bool, an integer, float16, float32 or float64")
    })?;
    let ty = TensorType::new(dtype, dims);
    let expected = ty.shape.checked_elements().and_then(|n| n.checked_mul(dtype.size()));
    if expected != Some(data.len()) {
        return Err(wrong(&format!("its header specifies {ty}, but {} bytes follow", data.len())));
    }
    let mut x = Literal::from_bytes(ty, data)?;
    if is_big {
        x.bytes_mut().chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
    if is_fortran {
        return Literal::from_bytes(x.ty().clone(), &from_fortran(x.bytes(), x.shape(), dtype.size()));
    }
    Ok(x)
}

/// Parses type, order and shape: `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
fn header_of(text: &str) -> Option<(String, bool, Vec<usize>)> {
    let value = |key: &str| {
        let after = text.split_once(&format!("'{key}'"))?.1;
        Some(after.split_once(':')?.1.trim_start())
    };
    let descr = value("descr")?.strip_prefix('\'')?.split_once('\'')?.0.to_string();
    let is_fortran = match value("fortran_order")? {
        v if v.starts_with("True") => true,
        v if v.starts_with("False") => false,
        _ => return None,
    };
    let dims = value("shape")?.strip_prefix('(')?.split_once(')')?.0;
    let dims = dims.split(',').map(str::trim).filter(|d| !d.is_empty());
    Some((descr, is_fortran, dims.map(|d| d.trim_end_matches('L').parse().ok()).collect::<Option<_>>()?))
}

/// NumPy's type strings without byte order.
const TYPES: [(&str, DType); 12] = [
    ("b1", DType::Bool),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
];

/// Returns the type, and whether its bytes are big endian.
fn dtype_of(descr: &str) -> Option<(DType, bool)> {
    let (order, kind) = descr.split_at_checked(1)?;
    let (_, dtype) = TYPES.iter().find(|(name, _)| *name == kind)?;
    matches!(order, "<" | "|" | "=" | ">").then_some((*dtype, order == ">"))
}

/// Converts column-major to row-major elements of `size` bytes.
fn from_fortran(bytes: &[u8], dims: &[usize], size: usize) -> Vec<u8> {
    let mut rows = Vec::with_capacity(bytes.len());
    for index in Shape::new(dims).indices() {
        let from = index.iter().zip(dims).rev().fold(0, |sum, (i, d)| sum * d + i);
        rows.extend_from_slice(&bytes[from * size..][..size]);
    }
    rows
}

/// Returns the bytes of an `.npy` file, as numpy.save writes it.
///
/// # Errors
/// For bf16, which NumPy does not support.
pub fn to_bytes(x: &Literal) -> Result<Vec<u8>> {
    let Some((kind, dtype)) = TYPES.iter().find(|(_, dtype)| *dtype == x.dtype()) else {
        return Err(err!(Data, "NumPy does not support bf16").hint("cast the array to f32"));
    };
    let order = if dtype.size() == 1 { "|" } else { "<" };
    Ok([&head(&format!("{order}{kind}"), x.shape())?[..], x.bytes()].concat())
}

/// Returns the bytes before the elements.
fn head(descr: &str, dims: &[usize]) -> Result<Vec<u8>> {
    let sizes: Vec<String> = dims.iter().map(ToString::to_string).collect();
    let shape = if let [one] = &sizes[..] { format!("{one},") } else { sizes.join(", ") };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The data starts at a multiple of 64 bytes.
    let pad = 63 - (MAGIC.len() + 4 + header.len()) % 64;
    header.push_str(&" ".repeat(pad));
    header.push('\n');
    let len = u16::try_from(header.len()).map_err(|_| err!(Data, "too many dimensions"))?;
    Ok([MAGIC, &[1, 0], &len.to_le_bytes(), header.as_bytes()].concat())
}

/// Writes an array as an `.npy` file: see [`to_bytes`].
pub fn write(path: impl AsRef<Path>, x: &Literal) -> Result<()> {
    write_atomically(&OsFileSystem, path.as_ref(), &[&to_bytes(x)?])
}

// Names of the previous version.
systole_base::renamed! { Array => NpyArray, Raw => RawNpyArray }

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    fn sample() -> Literal {
        Literal::from_slice([2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.5]).unwrap()
    }

    fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
        [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes(), data].concat()
    }

    #[test]
    fn every_type_reads_back_and_bytes_are_numpys() {
        for dtype in DType::ALL {
            let x = sample().convert(dtype);
            match to_bytes(&x) {
                Ok(bytes) => assert_eq!(from_bytes("x", &bytes).unwrap(), x),
                Err(_) => assert_eq!(dtype, DType::BF16),
            }
        }
        let bytes = to_bytes(&Literal::from_slice([2], &[1u8, 2]).unwrap()).unwrap();
        assert!(bytes.starts_with(
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }"
        ));
        assert_eq!((bytes.len(), bytes[127]), (130, b'\n'));
    }

    #[test]
    fn types_that_numpy_alone_has_come_back_with_the_archive() {
        let raw = |descr: &str, dims: &[usize], bytes: &[u8]| RawNpyArray {
            descr: descr.into(),
            dims: dims.to_vec(),
            bytes: bytes.to_vec(),
        };
        let arrays = vec![
            ("a".to_string(), raw("<c8", &[1], &[0, 0, 128, 63, 0, 0, 0, 64])),
            ("b".to_string(), raw("|V2", &[2, 1], &[1, 2, 3, 4])),
            ("c".to_string(), raw("<f8", &[], &1.5f64.to_le_bytes())),
            ("empty".to_string(), raw("|b1", &[0, 3], &[])),
        ];
        let file = npz_parts(&arrays).unwrap().concat();
        assert_eq!(raw_npz_from_bytes("x.npz", &file).unwrap(), arrays);
        for cut in 0..file.len() {
            assert!(raw_npz_from_bytes("cut", &file[..cut]).is_err(), "cut at {cut}");
        }
        let big = with_header(
            "{'descr': '>c8', 'fortran_order': False, 'shape': (1,), }",
            &[1, 2, 3, 4, 5, 6, 7, 8],
        );
        assert_eq!(raw_from_bytes("x", &big).unwrap().bytes, [4, 3, 2, 1, 8, 7, 6, 5]);
        let fortran =
            with_header("{'descr': '|V1', 'fortran_order': True, 'shape': (2, 3), }", &[1, 4, 2, 5, 3, 6]);
        assert_eq!(raw_from_bytes("x", &fortran).unwrap().bytes, [1, 2, 3, 4, 5, 6]);
        for descr in ["|O", "<U3", "<M8", "V", ""] {
            let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (1,), }}");
            assert!(raw_from_bytes("x", &with_header(&header, &[1])).is_err(), "{descr}");
        }
    }

    #[test]
    fn orders_of_bytes_and_of_dimensions() {
        let big = with_header("{'descr': '>i2', 'fortran_order': False, 'shape': (2,), }", &[0, 1, 1, 0]);
        assert_eq!(from_bytes("x", &big).unwrap().as_slice::<i16>().unwrap(), [1, 256]);
        let fortran =
            with_header("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", &[1, 4, 2, 5, 3, 6]);
        assert_eq!(from_bytes("x", &fortran).unwrap().bytes(), [1, 2, 3, 4, 5, 6]);
        let scalar =
            with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", &1.5f64.to_le_bytes());
        assert_eq!(from_bytes("x", &scalar).unwrap().to_f64s(), [1.5]);
    }

    #[test]
    fn damage_is_an_error_or_another_array_and_never_a_panic() {
        let good = to_bytes(&sample()).unwrap();
        for cut in 0..good.len() {
            assert!(from_bytes("cut", &good[..cut]).is_err(), "cut at {cut}");
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Err(e) = from_bytes("flipped", &bad) {
                assert!(e.to_string().contains("flipped"));
            }
        }
        for shape in ["(18446744073709551615, 2)", "(4294967296, 4294967296, 4294967296)", "(-1,)", "x"] {
            let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}");
            assert!(from_bytes("x", &with_header(&header, &[1])).is_err());
        }
        let object = with_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", &[1]);
        assert_error(&from_bytes("x", &object).unwrap_err(), ErrorKind::Data, &["|O"]);
    }
}
