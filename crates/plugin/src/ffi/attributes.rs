//! Attributes of an FFI call in the form in which C handlers read them.

use super::abi::{self, ByteSpan, FfiArray, FfiAttributes, FfiHeader, FfiScalar};
use std::ffi::c_void;
use systole_ir::{Literal, Result, err};
use systole_mlir::import::FfiAttribute;
use systole_mlir::interface::SourceElement;

/// Attributes by name, with the memory that their pointers refer to.
pub(super) struct FfiAttributeTable {
    types: Vec<i32>,
    /// Boxed, because handlers hold pointers to each.
    #[allow(clippy::vec_box, reason = "handlers hold pointers to each")]
    spans: Vec<Box<ByteSpan>>,
    names: Vec<*mut ByteSpan>,
    values: Vec<*mut c_void>,
    _memory: Vec<AttributeMemory>,
}

// SAFETY: immutable after construction; the pointers are to memory that the table owns.
unsafe impl Send for FfiAttributeTable {}
// SAFETY: as above.
unsafe impl Sync for FfiAttributeTable {}

/// An attribute and the memory behind it.
enum AttributeMemory {
    Scalar { _value: Box<FfiScalar>, _data: Literal },
    Array { _value: Box<FfiArray>, _data: Literal },
    Text { _value: Box<ByteSpan>, _data: Box<str> },
    Dictionary { _value: Box<FfiAttributes>, _table: Box<FfiAttributeTable> },
    Name { _text: Box<str> },
}

fn pointer<T>(of: &T) -> *mut c_void {
    std::ptr::from_ref(of).cast_mut().cast()
}

fn span(text: &str) -> ByteSpan {
    ByteSpan { ptr: text.as_ptr(), len: text.len() }
}

fn code(name: &str, data: &Literal) -> Result<i32> {
    let found = abi::element_code(SourceElement::Plain(data.dtype()));
    found.ok_or_else(|| err!(Unsupported, "FFI attribute `{name}` has type {}", data.dtype()))
}

impl FfiAttributeTable {
    pub(super) fn new(attributes: &[(String, FfiAttribute)]) -> Result<FfiAttributeTable> {
        let mut table = FfiAttributeTable {
            types: Vec::new(),
            spans: Vec::new(),
            names: Vec::new(),
            values: Vec::new(),
            _memory: Vec::new(),
        };
        for (name, value) in attributes {
            let text: Box<str> = name.as_str().into();
            table.spans.push(Box::new(span(&text)));
            table._memory.push(AttributeMemory::Name { _text: text });
            table.add(name, value)?;
        }
        table.names = table.spans.iter().map(|span| pointer(&**span).cast()).collect();
        Ok(table)
    }

    fn add(&mut self, name: &str, value: &FfiAttribute) -> Result<()> {
        let (kind, value, memory) = match value {
            FfiAttribute::Scalar(data) => {
                let data = data.clone();
                let value = Box::new(FfiScalar {
                    dtype: code(name, &data)?,
                    value: data.bytes().as_ptr().cast_mut().cast(),
                });
                (abi::SCALAR, pointer(&*value), AttributeMemory::Scalar { _value: value, _data: data })
            }
            FfiAttribute::Array(data) => {
                let data = data.clone();
                let (dtype, size) = (code(name, &data)?, data.ty().elements());
                let value = Box::new(FfiArray { dtype, size, data: data.bytes().as_ptr().cast_mut().cast() });
                (abi::ARRAY, pointer(&*value), AttributeMemory::Array { _value: value, _data: data })
            }
            FfiAttribute::String(text) => {
                let data: Box<str> = text.as_str().into();
                let value = Box::new(span(&data));
                (abi::STRING, pointer(&*value), AttributeMemory::Text { _value: value, _data: data })
            }
            FfiAttribute::Dictionary(fields) => {
                let table = Box::new(FfiAttributeTable::new(fields)?);
                let value = Box::new(table.view());
                (
                    abi::DICTIONARY,
                    pointer(&*value),
                    AttributeMemory::Dictionary { _value: value, _table: table },
                )
            }
        };
        self.types.push(kind);
        self.values.push(value);
        self._memory.push(memory);
        Ok(())
    }

    /// Returns the C structure, which is valid as long as the table.
    pub(super) fn view(&self) -> FfiAttributes {
        FfiAttributes {
            header: FfiHeader::of::<FfiAttributes>(),
            size: self.types.len() as i64,
            types: self.types.as_ptr().cast_mut(),
            names: self.names.as_ptr().cast_mut(),
            values: self.values.as_ptr().cast_mut(),
        }
    }
}
