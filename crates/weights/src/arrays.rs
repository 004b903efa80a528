//! Arrays of files: their element types by the names of safetensors, and the limit of what a file may unpack to.

use systole_ir::{DType, Error, ErrorKind, Literal, Result, Shape, TensorType};

/// The element types that weights come in, as safetensors calls them.
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

/// The bytes that arrays of these sizes take, or an error where no machine holds them.
pub(crate) fn bytes_of(dtype: DType, dims: &[usize]) -> Result<usize> {
    let elements = Shape::new(dims).checked_elements().filter(|n| *n < 1 << 40);
    let bytes = elements.and_then(|n| n.checked_mul(dtype.size()));
    bytes.ok_or_else(|| {
        Error::new(ErrorKind::Data, format!("an array of {} {dims:?} is absurdly large", dtype.name()))
            .hint("the file is damaged: get it again")
    })
}

/// An array from its bytes; those of bools are brought to 0 and 1.
pub(crate) fn literal(dtype: DType, dims: &[usize], bytes: &[u8]) -> Result<Literal> {
    let ty = TensorType::new(dtype, dims);
    if dtype == DType::Bool {
        let bits: Vec<bool> = bytes.iter().map(|b| *b != 0).collect();
        return Literal::from_bools(dims, &bits);
    }
    Literal::from_bytes(ty, bytes)
}

/// What all arrays of a file may take together: eight times the file and a mebibyte. Shared, packed and strided arrays
/// take more than their bytes in the file; a file that needs more than this is made to fill memory.
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
            None => Err(Error::new(ErrorKind::Data, "the file's arrays take far more memory than the file")
                .because(format!("more than {} bytes, eight times its length", self.all))
                .hint("it is damaged, or made to fill memory: get it from somebody you trust")),
        }
    }
}
