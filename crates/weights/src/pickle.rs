//! Safe pickle reader: supports only tensors, dictionaries, lists, tuples, numbers and strings. Nothing is imported or
//! called; a global that is not on the allowlist is an error.
//!
//! Each byte of the pickle creates at most one fixed-size value, so memory is at most 64 times its length.

use std::collections::HashMap;
use std::sync::Arc;
use systole_ir::{Error, Result, ensure, err};

/// A value in a pickle.
#[derive(Clone, Debug)]
pub(crate) enum PickleValue {
    None,
    Bool(bool),
    Int(i64),
    Float,
    Text(Arc<str>),
    /// A tuple, list or dictionary, by index in [`Pickle::objects`].
    Object(usize),
    /// An allowed class or function.
    Global(PickleGlobal),
    Storage(Arc<TorchStorage>),
    Tensor(Arc<TorchTensor>),
    /// A value without tensors that is ignored: an element type, a device.
    Other,
}

/// Contents of a container.
#[derive(Debug)]
pub(crate) enum PickleObject {
    Tuple(Vec<PickleValue>),
    List(Vec<PickleValue>),
    Dict(Vec<(PickleValue, PickleValue)>),
}

/// Allowed globals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PickleGlobal {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Size,
    Device,
    /// A storage class, by safetensors element type.
    Storage(&'static str),
    DType,
}

/// Elements in another file of the archive.
#[derive(Debug)]
pub(crate) struct TorchStorage {
    pub key: String,
    pub dtype: &'static str,
    pub elements: usize,
    /// First element and number of elements, if it is part of another storage; only in legacy files.
    pub view: Option<(usize, usize)>,
}

/// A view of a storage.
#[derive(Debug)]
pub(crate) struct TorchTensor {
    pub storage: Arc<TorchStorage>,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// A decoded pickle: its root and all objects.
#[derive(Debug)]
pub(crate) struct Pickle {
    pub root: PickleValue,
    pub objects: Vec<PickleObject>,
    /// All storages that it refers to.
    pub storages: Vec<Arc<TorchStorage>>,
}

const STORAGES: [(&str, &str); 13] = [
    ("FloatStorage", "F32"),
    ("DoubleStorage", "F64"),
    ("HalfStorage", "F16"),
    ("BFloat16Storage", "BF16"),
    ("LongStorage", "I64"),
    ("IntStorage", "I32"),
    ("ShortStorage", "I16"),
    ("CharStorage", "I8"),
    ("ByteStorage", "U8"),
    ("BoolStorage", "BOOL"),
    ("UInt16Storage", "U16"),
    ("UInt32Storage", "U32"),
    ("UInt64Storage", "U64"),
];

const DTYPES: [&str; 15] = [
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "float",
    "double", "half", "long", "int",
];

fn known(module: &str, name: &str) -> Result<PickleGlobal> {
    let found = match (module, name) {
        ("collections", "OrderedDict") => Some(PickleGlobal::OrderedDict),
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => Some(PickleGlobal::RebuildTensor),
        ("torch._utils", "_rebuild_parameter") => Some(PickleGlobal::RebuildParameter),
        ("torch", "Size") => Some(PickleGlobal::Size),
        ("torch", "device") => Some(PickleGlobal::Device),
        ("torch.storage", "UntypedStorage") | ("torch", "UntypedStorage") => {
            Some(PickleGlobal::Storage("U8"))
        }
        ("torch", name) if DTYPES.contains(&name) => Some(PickleGlobal::DType),
        ("torch", name) => STORAGES.iter().find(|s| s.0 == name).map(|s| PickleGlobal::Storage(s.1)),
        _ => None,
    };
    found.ok_or_else(|| {
        err!(Data, "the pickle requires the Python object `{module}.{name}`")
            .because("only tensors, dictionaries, lists, numbers and strings are read: nothing in a file is executed")
            .hint("save only the weights: torch.save(model.state_dict(), \"weights.pt\")")
    })
}

/// Maximum rank of a tensor.
const RANK: usize = 16;

pub(crate) fn wrong(why: impl Into<String>) -> Error {
    err!(Data, "cannot read the pickle").because(why).hint("download or save the file again")
}

enum StackItem {
    Mark,
    Value(PickleValue),
}

struct PickleMachine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<StackItem>,
    memo: HashMap<u64, PickleValue>,
    objects: Vec<PickleObject>,
    /// Pairs copied to dictionaries; at most one per byte.
    copied: usize,
    storages: Vec<Arc<TorchStorage>>,
}

/// Runs a pickle to its end.
///
/// # Errors
/// If it is damaged, or refers to a global that tensors do not need (names it).
pub(crate) fn read(bytes: &[u8]) -> Result<Pickle> {
    read_first(bytes).map(|(pickle, _)| pickle)
}

/// Like [`read`], for a pickle that other data follows; also returns its length.
pub(crate) fn read_first(bytes: &[u8]) -> Result<(Pickle, usize)> {
    let mut machine = PickleMachine {
        bytes,
        at: 0,
        stack: Vec::new(),
        memo: HashMap::new(),
        objects: Vec::new(),
        copied: 0,
        storages: Vec::new(),
    };
    loop {
        let at = machine.at;
        let op = machine.take(1)?[0];
        if op == b'.' {
            let root = machine.pop()?;
            return Ok((Pickle { root, objects: machine.objects, storages: machine.storages }, machine.at));
        }
        machine.step(op).map_err(|e| e.at(format!("byte {at} of the pickle")))?;
    }
}

impl<'a> PickleMachine<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| wrong(format!("it ends at byte {}", self.bytes.len())))?;
        let part = &self.bytes[self.at..end];
        self.at = end;
        Ok(part)
    }

    fn number(&mut self, n: usize) -> Result<u64> {
        Ok(self.take(n)?.iter().rev().fold(0, |sum, &b| sum << 8 | u64::from(b)))
    }

    fn length(&mut self, n: usize) -> Result<usize> {
        usize::try_from(self.number(n)?).map_err(|_| wrong("a length is too large"))
    }

    fn push(&mut self, value: PickleValue) -> Result<()> {
        self.stack.push(StackItem::Value(value));
        Ok(())
    }

    fn pop(&mut self) -> Result<PickleValue> {
        match self.stack.pop() {
            Some(StackItem::Value(value)) => Ok(value),
            _ => Err(wrong("it pops from an empty stack")),
        }
    }

    fn pop_n(&mut self, n: usize) -> Result<Vec<PickleValue>> {
        let mut values = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        values.reverse();
        Ok(values)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<PickleValue>> {
        let mut values = Vec::new();
        loop {
            match self.stack.pop() {
                Some(StackItem::Value(value)) => values.push(value),
                Some(StackItem::Mark) => break,
                None => return Err(wrong("it pops to a missing mark")),
            }
        }
        values.reverse();
        Ok(values)
    }

    fn object(&mut self, object: PickleObject) -> Result<()> {
        self.objects.push(object);
        self.push(PickleValue::Object(self.objects.len() - 1))
    }

    fn text(&mut self, length: usize) -> Result<()> {
        let bytes = self.take(length)?;
        self.push(PickleValue::Text(String::from_utf8_lossy(bytes).into()))
    }

    fn line(&mut self) -> Result<String> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&b| b == b'\n').ok_or_else(|| wrong("a name is not terminated"))?;
        self.at += end + 1;
        Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
    }

    fn step(&mut self, op: u8) -> Result<()> {
        match op {
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.stack.push(StackItem::Mark),
            b'0' => drop(self.stack.pop()),
            b'1' => drop(self.pop_to_mark()?),
            b'2' => {
                let top = self.pop()?;
                self.push(top.clone())?;
                self.push(top)?;
            }
            b'N' => self.push(PickleValue::None)?,
            0x88 | 0x89 => self.push(PickleValue::Bool(op == 0x88))?,
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memo_step(op)?,
            b']' => self.object(PickleObject::List(Vec::new()))?,
            b'}' => self.object(PickleObject::Dict(Vec::new()))?,
            b')' => self.object(PickleObject::Tuple(Vec::new()))?,
            b't' => {
                let values = self.pop_to_mark()?;
                self.object(PickleObject::Tuple(values))?;
            }
            0x85..=0x87 => {
                let values = self.pop_n(usize::from(op - 0x84))?;
                self.object(PickleObject::Tuple(values))?;
            }
            b'a' | b'e' | b's' | b'u' => self.fill(op)?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(PickleValue::Global(known(&module, &name)?))?;
            }
            0x93 => {
                let names = self.pop_n(2)?;
                let [PickleValue::Text(module), PickleValue::Text(name)] = &names[..] else {
                    return Err(wrong("a name is not UTF-8"));
                };
                self.push(PickleValue::Global(known(module, name)?))?;
            }
            b'R' => self.reduce()?,
            // Attributes of an OrderedDict: module versions.
            b'b' => drop(self.pop()?),
            b'Q' => self.persistent()?,
            _ => self.literal(op)?,
        }
        Ok(())
    }

    fn literal(&mut self, op: u8) -> Result<()> {
        match op {
            b'J' => {
                let n = self.number(4)? as u32 as i32;
                self.push(PickleValue::Int(n.into()))
            }
            b'K' => {
                let n = self.number(1)?;
                self.push(PickleValue::Int(n as i64))
            }
            b'M' => {
                let n = self.number(2)?;
                self.push(PickleValue::Int(n as i64))
            }
            0x8a => {
                let length = self.length(1)?;
                let bytes = self.take(length)?;
                if length > 8 {
                    return self.push(PickleValue::Other);
                }
                let fill = if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
                let mut all = [fill; 8];
                all[..length].copy_from_slice(bytes);
                self.push(PickleValue::Int(i64::from_le_bytes(all)))
            }
            b'G' => {
                self.take(8)?;
                self.push(PickleValue::Float)
            }
            b'X' | b'T' | b'B' => {
                let length = self.length(4)?;
                self.text(length)
            }
            0x8c | b'U' | b'C' => {
                let length = self.length(1)?;
                self.text(length)
            }
            0x8d | 0x8e => {
                let length = self.length(8)?;
                self.text(length)
            }
            _ => Err(wrong(format!("unsupported opcode {op:#04x}"))),
        }
    }

    fn memo_step(&mut self, op: u8) -> Result<()> {
        match op {
            b'h' | b'j' => {
                let key = self.number(if op == b'h' { 1 } else { 4 })?;
                let value = self.memo.get(&key).cloned();
                self.push(value.ok_or_else(|| wrong(format!("memo entry {key} does not exist")))?)
            }
            _ => {
                let key = match op {
                    b'q' => self.number(1)?,
                    b'r' => self.number(4)?,
                    _ => self.memo.len() as u64,
                };
                match self.stack.last() {
                    Some(StackItem::Value(value)) => drop(self.memo.insert(key, value.clone())),
                    _ => return Err(wrong("it memoizes from an empty stack")),
                }
                Ok(())
            }
        }
    }

    /// Appends values to the list or dictionary below them.
    fn fill(&mut self, op: u8) -> Result<()> {
        let values = match op {
            b'a' => self.pop_n(1)?,
            b's' => self.pop_n(2)?,
            _ => self.pop_to_mark()?,
        };
        let Some(StackItem::Value(PickleValue::Object(at))) = self.stack.last() else {
            return Err(wrong("it appends to a value that is not a list or dictionary"));
        };
        match &mut self.objects[*at] {
            PickleObject::List(list) if matches!(op, b'a' | b'e') => list.extend(values),
            PickleObject::Dict(dict) if matches!(op, b's' | b'u') && values.len() % 2 == 0 => {
                let mut values = values.into_iter();
                while let (Some(key), Some(value)) = (values.next(), values.next()) {
                    dict.push((key, value));
                }
            }
            _ => return Err(wrong("it appends to a value that is not a list or dictionary")),
        }
        Ok(())
    }

    fn tuple(&self, value: &PickleValue) -> Result<&[PickleValue]> {
        match value {
            PickleValue::Object(at) => match &self.objects[*at] {
                PickleObject::Tuple(values) | PickleObject::List(values) => Ok(values),
                PickleObject::Dict(_) => Err(wrong("expected a tuple, got a dictionary")),
            },
            _ => Err(wrong("expected a tuple")),
        }
    }

    fn sizes(&self, value: &PickleValue) -> Result<Vec<usize>> {
        let size = |v: &PickleValue| match v {
            PickleValue::Int(n) => usize::try_from(*n).map_err(|_| wrong("a size is negative")),
            _ => Err(wrong("a size is not a number")),
        };
        let values = self.tuple(value)?;
        ensure!(values.len() <= RANK, wrong(format!("a tensor has {} dimensions", values.len())));
        values.iter().map(size).collect()
    }

    /// Returns the entries of an OrderedDict as Python 2 pickles them: a list of lists of two.
    fn pairs(&mut self, list: Option<&PickleValue>) -> Result<Vec<(PickleValue, PickleValue)>> {
        let Some(list) = list else { return Ok(Vec::new()) };
        let count = self.tuple(list)?.len();
        self.copied += count;
        if self.copied > self.bytes.len() {
            return Err(wrong("its dictionaries have more entries than it has bytes"));
        }
        let pair = |value: &PickleValue| match self.tuple(value)? {
            [key, value] => Ok((key.clone(), value.clone())),
            _ => Err(wrong("an entry of a dictionary is not a pair")),
        };
        self.tuple(list)?.iter().map(pair).collect()
    }

    /// Executes REDUCE, only for functions that create tensors and dictionaries.
    fn reduce(&mut self) -> Result<()> {
        let arguments = self.pop()?;
        let PickleValue::Global(function) = self.pop()? else {
            return Err(wrong("it calls a value that is not a function"));
        };
        let arguments: Vec<PickleValue> = self.tuple(&arguments)?.iter().take(8).cloned().collect();
        match function {
            PickleGlobal::OrderedDict => {
                let pairs = self.pairs(arguments.first())?;
                self.object(PickleObject::Dict(pairs))
            }
            PickleGlobal::RebuildTensor => {
                let [PickleValue::Storage(storage), PickleValue::Int(offset), shape, strides, ..] =
                    &arguments[..]
                else {
                    return Err(wrong("a tensor requires a storage, an offset, sizes and strides"));
                };
                let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
                let offset = usize::try_from(*offset).map_err(|_| wrong("an offset is negative"))?;
                if shape.len() != strides.len() {
                    return Err(wrong("a tensor has different numbers of strides and sizes"));
                }
                let storage = storage.clone();
                self.push(PickleValue::Tensor(Arc::new(TorchTensor { storage, offset, shape, strides })))
            }
            PickleGlobal::RebuildParameter => {
                let value = arguments.into_iter().next();
                self.push(value.ok_or_else(|| wrong("a parameter has no value"))?)
            }
            PickleGlobal::Size => {
                let value = arguments.into_iter().next();
                self.push(value.ok_or_else(|| wrong("a size has no value"))?)
            }
            PickleGlobal::Device => self.push(PickleValue::Other),
            PickleGlobal::Storage(_) | PickleGlobal::DType => {
                Err(wrong("it calls a value that is not a function"))
            }
        }
    }

    /// Resolves a persistent id: `("storage", class, key, device, elements)`; legacy files add `None` or the view `(key,
    /// first element, elements)`.
    fn persistent(&mut self) -> Result<()> {
        let id = self.pop()?;
        let id = self.tuple(&id)?;
        let [
            PickleValue::Text(kind),
            PickleValue::Global(PickleGlobal::Storage(dtype)),
            PickleValue::Text(key),
            _,
            PickleValue::Int(n),
            rest @ ..,
        ] = id
        else {
            return Err(wrong("a persistent id is not a storage"));
        };
        let elements = usize::try_from(*n).ok().filter(|_| &**kind == "storage");
        let elements = elements.ok_or_else(|| wrong("a storage has a negative size"))?;
        let view = match rest {
            [] | [PickleValue::None] => None,
            [view] => match self.tuple(view)? {
                [_, PickleValue::Int(first), PickleValue::Int(n)] => {
                    let size = |n: i64| usize::try_from(n).map_err(|_| wrong("a view has a negative size"));
                    Some((size(*first)?, size(*n)?))
                }
                _ => return Err(wrong("the view of a storage is not a key and two numbers")),
            },
            _ => return Err(wrong("a persistent id is not a storage")),
        };
        let storage = TorchStorage { key: key.to_string(), dtype, elements, view };
        let storage = Arc::new(storage);
        self.storages.push(storage.clone());
        self.push(PickleValue::Storage(storage))
    }
}

/// Returns PyTorch's storage class for an element type.
pub(crate) fn storage_class(dtype: systole_ir::DType) -> Result<&'static str> {
    let class = crate::arrays::dtype_name(dtype).and_then(|name| STORAGES.iter().find(|s| s.1 == name));
    class.map(|s| s.0).ok_or_else(|| {
        err!(Config, "PyTorch files cannot contain {}", dtype.name()).hint("convert the array to f32 first")
    })
}
