//! Reads builtin and VHLO types and attributes from MLIR bytecode, and converts VHLO to StableHLO.

use super::reader::{BytecodeReader, MAX_DEPTH, unknown};
use crate::byte_io::{ByteReader, wrong};
use crate::vhlo_tables::{FieldEncoding, STRUCTURES, TYPES, WORDS};
use systole_base::{Result, ensure};
use systole_mlir::quantized_type::{QuantizedType, float_text};
use systole_mlir::syntax::{
    Attribute, DenseElements, ElementData, MlirType, NamedAttributes, RankedTensorType,
};

/// Memory charged for a type or attribute in addition to its lists and strings.
const TYPE_BYTES: usize = size_of::<MlirType>() + 48;
const ATTRIBUTE_BYTES: usize = size_of::<(String, Attribute)>() + 48;

/// Types.
impl<'a> BytecodeReader<'a> {
    /// Reads the number of a type and returns the type.
    pub(super) fn ty(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<MlirType> {
        let n = bytes.number()?;
        self.type_of(n, bytes.at, depth)
    }

    /// Returns a type by number.
    pub(super) fn type_of(&self, n: u64, at: usize, depth: usize) -> Result<MlirType> {
        let entry = Self::entry(&self.file.types, n, "type", at)?;
        let mut bytes = entry.bytes;
        ensure!(depth != MAX_DEPTH, bytes.wrong(format!("types are nested deeper than {MAX_DEPTH}")));
        self.charge(TYPE_BYTES)?;
        match (entry.dialect, entry.custom) {
            ("builtin", true) => self.builtin_type(&mut bytes, depth + 1),
            ("vhlo", true) => self.vhlo_type(&mut bytes, depth + 1),
            // Tokens of Shardy ops, which VHLO does not convert.
            ("stablehlo", true) if bytes.number()? == 0 => Ok(MlirType::Token),
            (_, false) => {
                let text = bytes.text()?;
                self.charge(text.len() * 16)?;
                systole_mlir::text::parse_type(text).map_err(|e| e.at(format!("byte {at}")))
            }
            (dialect, _) => Err(unknown(format!("unsupported types of dialect {dialect}"), at)),
        }
    }

    pub(super) fn types(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Vec<MlirType>> {
        bytes.list(|b| self.ty(b, depth))
    }

    fn builtin_type(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<MlirType> {
        let scalar = |name: &str| Ok(MlirType::Scalar(name.into()));
        match bytes.number()? {
            0 => {
                let n = bytes.number()?;
                let prefix = match n & 3 {
                    0 => "i",
                    1 => "si",
                    _ => "ui",
                };
                Ok(MlirType::Scalar(format!("{prefix}{}", n >> 2)))
            }
            1 => scalar("index"),
            2 => Ok(MlirType::Function(self.types(bytes, depth)?, self.types(bytes, depth)?)),
            3 => scalar("bf16"),
            4 => scalar("f16"),
            5 => scalar("f32"),
            6 => scalar("f64"),
            9 => Ok(MlirType::Scalar(format!("complex<{}>", self.ty(bytes, depth)?))),
            12 => scalar("none"),
            13 => self.ranked(bytes, None, depth),
            14 => {
                let encoding = self.encoding(bytes, depth)?;
                self.ranked(bytes, Some(encoding), depth)
            }
            15 => Ok(MlirType::Tuple(self.types(bytes, depth)?)),
            code => Err(unknown(format!("unsupported builtin type {code}"), bytes.at)),
        }
    }

    fn vhlo_type(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<MlirType> {
        let code = bytes.number()?;
        if let Some((_, name, ..)) = TYPES.iter().find(|(c, ..)| *c == code) {
            return Ok(MlirType::Scalar((*name).into()));
        }
        match code {
            1 => Ok(MlirType::Scalar(format!("complex<{}>", self.ty(bytes, depth)?))),
            8 => Ok(MlirType::Function(self.types(bytes, depth)?, self.types(bytes, depth)?)),
            20 => self.ranked(bytes, None, depth),
            21 => {
                let encoding = self.encoding(bytes, depth)?;
                self.ranked(bytes, Some(encoding), depth)
            }
            22 => Ok(MlirType::Token),
            23 => Ok(MlirType::Tuple(self.types(bytes, depth)?)),
            24 => self.quantized(bytes, false, depth),
            30 => self.quantized(bytes, true, depth),
            25 => Ok(MlirType::Other(format!("tensor<*x{}>", self.ty(bytes, depth)?))),
            41 => {
                let tensor = self.ranked(bytes, None, depth)?.to_string();
                Ok(MlirType::Scalar(tensor.replacen("tensor", "memref", 1)))
            }
            42 => {
                let all = MlirType::Tuple(self.types(bytes, depth)?).to_string();
                Ok(MlirType::Other(all.replacen("tuple", "!stablehlo.future", 1)))
            }
            code => Err(unknown(format!("unsupported VHLO type {code}"), bytes.at)),
        }
    }

    /// Reads dimension sizes and the element type.
    fn ranked(&self, bytes: &mut ByteReader<'a>, encoding: Option<String>, depth: usize) -> Result<MlirType> {
        let dims = bytes.list(|b| match b.signed()? {
            i64::MIN => Ok(None),
            n => u64::try_from(n).map(Some).map_err(|_| b.wrong(format!("invalid dimension size {n}"))),
        })?;
        let element = self.ty(bytes, depth)?.to_string();
        self.charge(dims.len() * size_of::<Option<u64>>() + 2 * element.len())?;
        Ok(MlirType::Tensor(RankedTensorType { dims, element, encoding }))
    }

    fn encoding(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<String> {
        match self.attribute(bytes, depth)? {
            Attribute::Other(name, text) => Ok(format!("#{name}<{text}>")),
            _ => Err(unknown("unsupported encoding of a tensor type", bytes.at)),
        }
    }

    /// Reads `!quant.uniform<i8:f32, 34.0:16>`, `!quant.uniform<i8:f32:0, {34.0:16, 2.0}>`
    fn quantized(&self, bytes: &mut ByteReader<'a>, per_axis: bool, depth: usize) -> Result<MlirType> {
        let is_signed = bytes.number()? & 1 == 1;
        let (storage, expressed) = (self.ty(bytes, depth)?.to_string(), self.ty(bytes, depth)?.to_string());
        let digits = storage.trim_start_matches(|c: char| !c.is_ascii_digit());
        let bits = digits.parse().unwrap_or(8).clamp(1, 32);
        let axis = if per_axis { Some(bytes.number()?) } else { None };
        let (range, scales) = if per_axis {
            let range = (bytes.signed()?, bytes.signed()?);
            let scales = bytes.list(|b| Ok(f64::from_bits(b.signed()? as u64)))?;
            (range, scales.into_iter().zip(bytes.list(ByteReader::signed)?).collect())
        } else {
            let scale = (f64::from_bits(bytes.signed()? as u64), bytes.signed()?);
            ((bytes.signed()?, bytes.signed()?), vec![scale])
        };
        let text = QuantizedType { is_signed, bits, range, expressed, axis, scales }.to_string();
        self.charge(text.len() * 4)?;
        Ok(MlirType::Other(text))
    }
}

/// Attributes.
impl<'a> BytecodeReader<'a> {
    /// Reads the number of an attribute and returns the attribute.
    pub(super) fn attribute(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Attribute> {
        let n = bytes.number()?;
        self.attribute_of(n, bytes.at, depth)
    }

    /// Returns an attribute by number.
    pub(super) fn attribute_of(&self, n: u64, at: usize, depth: usize) -> Result<Attribute> {
        let entry = Self::entry(&self.file.attributes, n, "attribute", at)?;
        let mut bytes = entry.bytes;
        ensure!(depth != MAX_DEPTH, bytes.wrong(format!("attributes are nested deeper than {MAX_DEPTH}")));
        self.charge(ATTRIBUTE_BYTES)?;
        match (entry.dialect, entry.custom) {
            ("builtin", true) => self.builtin_attribute(&mut bytes, depth + 1),
            ("vhlo", true) => self.vhlo_attribute(&mut bytes, depth + 1),
            ("sdy", true) => self.shardy_attribute(&mut bytes, depth + 1),
            (_, false) => {
                let text = bytes.text()?;
                self.charge(text.len() * 64)?;
                systole_mlir::text::parse_attribute(text).map_err(|e| e.at(format!("byte {at}")))
            }
            (dialect, _) => Err(unknown(format!("unsupported attributes of dialect {dialect}"), at)),
        }
    }

    pub(super) fn list(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Vec<Attribute>> {
        bytes.list(|b| self.attribute(b, depth))
    }

    /// Reads `{…}`; values keep their integer types.
    pub(super) fn dictionary(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<NamedAttributes> {
        bytes.list(|b| {
            let Attribute::String(name) = self.attribute(b, depth)? else {
                return Err(b.wrong("an attribute name must be a string"));
            };
            Ok((name, self.attribute(b, depth)?))
        })
    }

    fn builtin_attribute(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Attribute> {
        match bytes.number()? {
            0 => Ok(Attribute::List(self.list(bytes, depth)?)),
            1 => Ok(Attribute::Dictionary(self.dictionary(bytes, depth)?)),
            2 | 3 => Ok(Attribute::String(self.text(bytes)?)),
            4 => match self.attribute(bytes, depth)? {
                Attribute::String(name) => Ok(Attribute::Symbol(name)),
                _ => Err(bytes.wrong("a symbol reference has no name")),
            },
            6 => Ok(Attribute::Type(self.ty(bytes, depth)?)),
            7 => Ok(Attribute::Unit),
            8 => self.int(bytes, depth),
            9 => self.float(bytes, depth),
            16 => {
                let ty = self.ty(bytes, depth)?;
                let n = bytes.count().map_err(|_| bytes.wrong("a resource does not exist"))?;
                let (name, _) =
                    *self.file.resources.get(n).ok_or_else(|| bytes.wrong("a resource does not exist"))?;
                self.charge(name.len())?;
                Ok(Attribute::Dense(DenseElements { ty, elements: ElementData::Resource(name.into()) }))
            }
            17 => self.array(bytes, depth),
            18 => self.dense(bytes, depth),
            code => Err(unknown(format!("unsupported builtin attribute {code}"), bytes.at)),
        }
    }

    fn vhlo_attribute(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Attribute> {
        let code = bytes.number()?;
        if let Some((_, kind, words)) = WORDS.iter().find(|(c, ..)| *c == code) {
            let n = bytes.number()?;
            let word = usize::try_from(n).ok().and_then(|n| words.split_ascii_whitespace().nth(n));
            let word = word.ok_or_else(|| bytes.wrong(format!("invalid value {n} of {kind}")))?;
            return Ok(match code {
                19 => Attribute::Other(format!("stablehlo.{kind}"), word.into()),
                _ => Attribute::Keyword((*kind).into(), word.into()),
            });
        }
        if let Some((_, kind, _, fields)) = STRUCTURES.iter().find(|(c, ..)| *c == code) {
            return Ok(Attribute::Struct((*kind).into(), self.fields(fields, bytes, depth)?));
        }
        match code {
            1 => Ok(Attribute::List(self.list(bytes, depth)?)),
            2 => Ok(Attribute::Bool(bytes.number()? == 1)),
            5 => Ok(Attribute::Int(bytes.number()?.into())),
            6 => Ok(Attribute::Dictionary(self.dictionary(bytes, depth)?)),
            8 => self.float(bytes, depth),
            9 => self.int(bytes, depth),
            14 => Ok(Attribute::String(self.text(bytes)?)),
            15 => self.dense(bytes, depth),
            17 => Ok(Attribute::Type(self.ty(bytes, depth)?)),
            18 => {
                let bounds = bytes.list(ByteReader::signed)?;
                let one = |n: &i64| if *n == i64::MIN { "?".into() } else { n.to_string() };
                let all: Vec<String> = bounds.iter().map(one).collect();
                self.charge(all.len() * 24)?;
                Ok(Attribute::Other("stablehlo.bounds".into(), all.join(", ")))
            }
            21 => {
                Ok(Attribute::Other("sub_axis".into(), format!("({}){}", bytes.signed()?, bytes.signed()?)))
            }
            code => Err(unknown(format!("unsupported VHLO attribute {code}"), bytes.at)),
        }
    }

    /// Reads the fields of a struct attribute.
    fn fields(
        &self,
        fields: &[(&str, FieldEncoding)],
        bytes: &mut ByteReader<'a>,
        depth: usize,
    ) -> Result<NamedAttributes> {
        let int = |n: i64| Attribute::Int(n.into());
        let mut all = NamedAttributes::new();
        for (name, field) in fields {
            let value = match field {
                FieldEncoding::Ints => {
                    let numbers = bytes.list(ByteReader::signed)?;
                    self.charge(numbers.len() * ATTRIBUTE_BYTES)?;
                    Some(Attribute::List(numbers.into_iter().map(int).collect()))
                }
                FieldEncoding::Int => Some(int(bytes.signed()?)),
                FieldEncoding::Float => {
                    let value = f64::from_bits(bytes.signed()? as u64);
                    Some(Attribute::Float(float_text(value), "f64".into()))
                }
                FieldEncoding::Attribute => Some(self.attribute(bytes, depth)?),
                FieldEncoding::Symbol => Some(match self.attribute(bytes, depth)? {
                    Attribute::String(name) => Attribute::Symbol(name),
                    other => other,
                }),
                FieldEncoding::Tagged => {
                    (bytes.number()? != 0).then(|| self.attribute(bytes, depth)).transpose()?
                }
                FieldEncoding::Flagged => {
                    let (n, is_there) = bytes.flagged()?;
                    is_there.then(|| self.attribute_of(n, bytes.at, depth)).transpose()?
                }
            };
            all.extend(value.map(|value| ((*name).to_owned(), value)));
        }
        Ok(all)
    }

    /// Reads a number type and a number of it; numbers that fit are stored in one byte.
    fn bits(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<(String, u32, u64)> {
        let ty = self.ty(bytes, depth)?.to_string();
        let width = width(&ty).ok_or_else(|| bytes.wrong(format!("expected a number type, got {ty}")))?;
        let bits = if width <= 8 { bytes.byte()?.into() } else { bytes.signed()? as u64 };
        Ok((ty, width, bits & u64::MAX >> (64 - width)))
    }

    fn int(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Attribute> {
        let (ty, width, bits) = self.bits(bytes, depth)?;
        if ty == "i1" {
            return Ok(Attribute::Bool(bits == 1));
        }
        let signed = ((bits << (64 - width)) as i64) >> (64 - width);
        let value = if ty.starts_with("ui") { i128::from(bits) } else { signed.into() };
        Ok(match ty.as_str() {
            "i64" => Attribute::Int(value),
            _ => Attribute::Other(ty, value.to_string()),
        })
    }

    fn float(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Attribute> {
        let (ty, width, bits) = self.bits(bytes, depth)?;
        let value = match ty.as_str() {
            "f64" => Some(f64::from_bits(bits)),
            "f32" => Some(f64::from(f32::from_bits(bits as u32))),
            _ => None,
        };
        let text = match value.filter(|v| v.is_finite()) {
            Some(_) if ty == "f32" => float_text(f32::from_bits(bits as u32)),
            Some(value) => float_text(value),
            None => format!("0x{bits:0digits$X}", digits = width.div_ceil(4) as usize),
        };
        Ok(Attribute::Float(text, ty))
    }

    fn array(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Attribute> {
        let ty = self.ty(bytes, depth)?.to_string();
        bytes.number()?;
        let blob = bytes.blob()?;
        let width = width(&ty)
            .filter(|_| ty.starts_with('i'))
            .ok_or_else(|| blob.wrong(format!("invalid array of {ty}")))?;
        self.charge(blob.len() * ATTRIBUTE_BYTES)?;
        let all = blob.all().chunks_exact(width.div_ceil(8) as usize).map(|chunk| match ty.as_str() {
            "i1" => Attribute::Bool(chunk.first() == Some(&1)),
            _ => Attribute::Int(little(chunk).into()),
        });
        Ok(Attribute::Array(ty.clone(), all.collect()))
    }

    /// Reads elements as bytes: one element for a splat; i1 is bit-packed.
    fn dense(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Attribute> {
        let ty = self.ty(bytes, depth)?;
        let blob = bytes.blob()?.all();
        let MlirType::Tensor(ranked) = &ty else {
            return Err(bytes.wrong(format!("invalid elements of type {ty}")));
        };
        let count = ranked.dims.iter().try_fold(1u64, |n, d| n.checked_mul((*d)?));
        let count = count.ok_or_else(|| bytes.wrong(format!("invalid elements of type {ty}")))?;
        self.charge(blob.len() * 2)?;
        let elements = match (ranked.element.as_str(), blob) {
            (_, []) => ElementData::None,
            ("i1", [0xFF]) => ElementData::Splat(vec!["true".into()]),
            ("i1", [0]) if count > 1 => ElementData::Splat(vec!["false".into()]),
            // An old writer used one byte per i1.
            ("i1", all) if all.len() as u64 == count && count > 1 => {
                let bit = |chunk: &[u8]| chunk.iter().rev().fold(0, |bits, b| bits << 1 | (b & 1));
                ElementData::Bytes(all.chunks(8).map(bit).collect())
            }
            (_, all) => ElementData::Bytes(all.to_vec()),
        };
        Ok(Attribute::Dense(DenseElements { ty, elements }))
    }
}

/// Returns the number of bits of a number type.
pub(crate) fn width(ty: &str) -> Option<u32> {
    let known = TYPES.iter().find(|(_, name, ..)| *name == ty).map(|(_, _, bits, _)| *bits);
    let other = || ty.trim_start_matches(['s', 'u']).strip_prefix('i')?.parse().ok();
    known.or_else(other).filter(|bits| (1..=64).contains(bits))
}

/// Decodes a little-endian signed integer.
pub(super) fn little(bytes: &[u8]) -> i64 {
    let sign = bytes.last().is_some_and(|b| b & 0x80 != 0);
    bytes.iter().rev().fold(if sign { -1 } else { 0 }, |n, b| n << 8 | i64::from(*b))
}

/// Returns an error about an op's attribute.
pub(super) fn bad(at: usize, op: &str, name: &str) -> systole_base::Error {
    wrong(at, format!("invalid attribute `{name}` of {op}"))
}
