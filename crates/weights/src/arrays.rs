//! Decodes arrays from files: element types by safetensors name, and a limit on unpacked memory.

use systole_ir::{DType, Literal, Result, Shape, TensorType, err};

/// Element types of weights, by safetensors name.
const DTYPES: [(&str, DType); 13] = [
    ("F32", DType::F32),
    ("F64", DType::F64),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("I64", DType::I64),
    ("I32", DType::I32),
    ("I16", DType::I16),
    ("I8", DType::I8),
    ("U8", DType::U8),
    ("U16", DType::U16),
    ("U32", DType::U32),
    ("U64", DType::U64),
    ("BOOL", DType::Bool),
];

pub(crate) fn dtype(name: &str) -> Option<DType> {
    DTYPES.iter().find(|d| d.0 == name).map(|d| d.1)
}

pub(crate) fn dtype_name(dtype: DType) -> Option<&'static str> {
    DTYPES.iter().find(|d| d.1 == dtype).map(|d| d.0)
}

/// Returns the size in bytes of an array, or an error if it overflows.
pub(crate) fn bytes_of(dtype: DType, dims: &[usize]) -> Result<usize> {
    let elements = Shape::new(dims).checked_elements().filter(|n| *n < 1 << 40);
    let bytes = elements.and_then(|n| n.checked_mul(dtype.size()));
    bytes.ok_or_else(|| {
        err!(Data, "an array of {} {dims:?} is too large", dtype.name())
            .hint("download or save the file again: it is damaged")
    })
}

/// Returns an array from its bytes; bools are normalized to 0 and 1.
pub(crate) fn literal(dtype: DType, dims: &[usize], bytes: &[u8]) -> Result<Literal> {
    let ty = TensorType::new(dtype, dims);
    if dtype == DType::Bool {
        let bits: Vec<bool> = bytes.iter().map(|b| *b != 0).collect();
        return Literal::from_bools(dims, &bits);
    }
    Literal::from_bytes(ty, bytes)
}

/// Memory limit for all arrays of a file: eight times the file size plus 1 MiB. Shared, compressed and strided arrays
/// take more memory than bytes in the file; a file that needs more than this is malicious.
pub(crate) struct UnpackLimit {
    left: usize,
    all: usize,
}

impl UnpackLimit {
    pub(crate) fn of(file: usize) -> UnpackLimit {
        let all = file.saturating_mul(8).saturating_add(1 << 20);
        UnpackLimit { left: all, all }
    }

    pub(crate) fn left(&self) -> usize {
        self.left
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(err!(Data, "the file's arrays need far more memory than the file")
                .because(format!("more than {} bytes, eight times the file size", self.all))
                .hint("use a file from a trusted source: the file is damaged or malicious")),
        }
    }
}
