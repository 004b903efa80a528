//! Writes types and attributes to MLIR bytecode, in the encodings of VHLO, the builtin dialect and Shardy.

use super::elements::{bits_of, bytes, of_ints};
use super::writer::{MAX_DEPTH, ModuleWriter, refused};
use crate::byte_io::ByteSink;
use crate::read::width;
use crate::vhlo_tables::{FieldEncoding, STRUCTURES, TYPES, WORDS};
use systole_base::{Result, ensure};
use systole_mlir::quantized_type::QuantizedType;
use systole_mlir::syntax::{
    Attribute, DenseElements, MlirType, NamedAttributes, OPEN, RankedTensorType, ShardyMesh, find,
};

/// Dialect whose types and attributes are written.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TargetDialect {
    /// VHLO, StableHLO's versioned dialect.
    Vhlo,
    /// MLIR's builtin dialect.
    Builtin,
}
use TargetDialect::{Builtin, Vhlo};

impl TargetDialect {
    fn name(self) -> &'static str {
        match self {
            Vhlo => "vhlo",
            Builtin => "builtin",
        }
    }
}

/// Returns the code of a parametric type in VHLO or the builtin dialect.
fn code(dialect: TargetDialect, vhlo: u64, builtin: u64) -> ByteSink {
    ByteSink::of([code_of(dialect, vhlo, builtin)])
}

/// Types.
impl ModuleWriter<'_> {
    /// Returns the number of a type.
    pub(super) fn ty(&mut self, ty: &MlirType, dialect: TargetDialect, depth: usize) -> Result<u64> {
        ensure!(depth != MAX_DEPTH, refused(format!("types are nested deeper than {MAX_DEPTH}")));
        let out = match ty {
            MlirType::Tensor(ranked) => self.ranked(ranked, dialect, depth)?,
            MlirType::Tuple(all) => {
                let mut out = code(dialect, 23, 15);
                self.types(all, dialect, depth + 1, &mut out)?;
                out
            }
            MlirType::Function(from, to) => {
                let mut out = code(dialect, 8, 2);
                self.types(from, dialect, depth + 1, &mut out)?;
                self.types(to, dialect, depth + 1, &mut out)?;
                out
            }
            MlirType::Token if dialect == Vhlo => code(dialect, 22, 0),
            MlirType::Token => return Ok(self.tables.type_text("stablehlo", "!stablehlo.token")),
            MlirType::Scalar(name) | MlirType::Other(name) => return self.named(name, dialect, depth + 1),
        };
        Ok(self.tables.ty(dialect.name(), out))
    }

    fn types(
        &mut self,
        all: &[MlirType],
        dialect: TargetDialect,
        depth: usize,
        out: &mut ByteSink,
    ) -> Result<()> {
        let numbers = all.iter().map(|ty| self.ty(ty, dialect, depth)).collect::<Result<Vec<_>>>()?;
        out.numbers(&numbers);
        Ok(())
    }

    fn ranked(
        &mut self,
        ranked: &RankedTensorType,
        dialect: TargetDialect,
        depth: usize,
    ) -> Result<ByteSink> {
        let mut out = match &ranked.encoding {
            None => code(dialect, 20, 13),
            Some(text) => {
                let mut out = code(dialect, 21, 14);
                out.number(self.bounds(text)?);
                out
            }
        };
        let dims: Vec<i64> = ranked.dims.iter().map(|d| d.map_or(i64::MIN, |d| d as i64)).collect();
        out.signeds(&dims);
        out.number(self.named(&ranked.element, dialect, depth + 1)?);
        Ok(out)
    }

    /// Writes `#stablehlo.bounds<16, ?>`, `#stablehlo.type_extensions<bounds = [16, ?]>`
    fn bounds(&mut self, text: &str) -> Result<u64> {
        let inner =
            text.strip_prefix("#stablehlo.").and_then(|rest| rest.split_once('<')).map(|(_, inner)| inner);
        let items =
            inner.map(|inner| inner.trim_start_matches("bounds = ").trim_matches(['[', ']', '>']).split(','));
        let one = |item: &str| if item.trim() == "?" { Some(i64::MIN) } else { item.trim().parse().ok() };
        let bounds = items.and_then(|items| items.map(one).collect::<Option<Vec<i64>>>());
        let bounds = bounds.ok_or_else(|| refused(format!("cannot write type encoding {text}")))?;
        let mut out = ByteSink::of([18]);
        out.signeds(&bounds);
        Ok(self.tables.attribute("vhlo", out))
    }

    /// Writes a type given by name.
    fn named(&mut self, name: &str, dialect: TargetDialect, depth: usize) -> Result<u64> {
        if let Some(part) = name.strip_prefix("complex<").and_then(|rest| rest.strip_suffix('>')) {
            let part = self.named(part, dialect, depth)?;
            let out = ByteSink::of([code_of(dialect, 1, 9), part]);
            return Ok(self.tables.ty(dialect.name(), out));
        }
        match dialect {
            Vhlo => self.vhlo_named(name, depth),
            Builtin => Ok(self.builtin_named(name)),
        }
    }

    fn vhlo_named(&mut self, name: &str, depth: usize) -> Result<u64> {
        let mut out = ByteSink::default();
        if let Some((code, _, _, since)) = TYPES.iter().find(|(_, n, ..)| *n == name) {
            self.since(*since, &format!("type {name}"))?;
            out.number(*code);
            return Ok(self.tables.ty("vhlo", out));
        }
        let of_text = |from: &str, to: &str| systole_mlir::text::parse_type(&name.replacen(from, to, 1)).ok();
        if name.starts_with("memref<")
            && let Some(MlirType::Tensor(ranked)) = of_text("memref", "tensor")
        {
            self.since((1, 13), "type memref")?;
            out.number(41);
            let dims: Vec<i64> = ranked.dims.iter().map(|d| d.map_or(i64::MIN, |d| d as i64)).collect();
            out.signeds(&dims);
            out.number(self.named(&ranked.element, Vhlo, depth + 1)?);
            return Ok(self.tables.ty("vhlo", out));
        }
        if name.starts_with("!stablehlo.future<")
            && let Some(MlirType::Tuple(all)) = of_text("!stablehlo.future", "tuple")
        {
            self.since((1, 15), "type !stablehlo.future")?;
            out.number(42);
            self.types(&all, Vhlo, depth + 1, &mut out)?;
            return Ok(self.tables.ty("vhlo", out));
        }
        let parts = QuantizedType::parse(name).ok_or_else(|| refused(format!("cannot write type {name}")))?;
        self.quantized(&parts, depth)
    }

    fn quantized(&mut self, q: &QuantizedType, depth: usize) -> Result<u64> {
        // The dialect has signless storage for both.
        let storage = self.named(&format!("i{}", q.bits), Vhlo, depth + 1)?;
        let expressed = self.named(&q.expressed, Vhlo, depth + 1)?;
        let code = if q.axis.is_some() { 30 } else { 24 };
        let mut out = ByteSink::of([code, u64::from(q.is_signed), storage, expressed]);
        let range = |out: &mut ByteSink| [q.range.0, q.range.1].into_iter().for_each(|n| out.signed(n));
        match (q.axis, q.scales.as_slice()) {
            (Some(axis), scales) => {
                out.number(axis);
                range(&mut out);
                out.signeds(&scales.iter().map(|(s, _)| s.to_bits() as i64).collect::<Vec<_>>());
                out.signeds(&scales.iter().map(|(_, z)| *z).collect::<Vec<_>>());
            }
            (None, [(scale, zero)]) => {
                out.signed(scale.to_bits() as i64);
                out.signed(*zero);
                range(&mut out);
            }
            _ => return Err(refused("a quantized type has several scales but no axis")),
        }
        Ok(self.tables.ty("vhlo", out))
    }

    fn builtin_named(&mut self, name: &str) -> u64 {
        let mut out = ByteSink::default();
        let plain = [("index", 1), ("bf16", 3), ("f16", 4), ("f32", 5), ("f64", 6), ("none", 12)];
        let digits =
            name.trim_start_matches(['s', 'u']).strip_prefix('i').and_then(|n| n.parse::<u64>().ok());
        if let Some((_, code)) = plain.iter().find(|(n, _)| *n == name) {
            out.number(*code);
        } else if let Some(bits) = digits {
            let sign = match name.as_bytes().first() {
                Some(b's') => 1,
                Some(b'u') => 2,
                _ => 0,
            };
            out.number(0);
            out.number(bits << 2 | sign);
        } else {
            return self.tables.type_text("builtin", name);
        }
        self.tables.ty("builtin", out)
    }
}

/// Attributes.
impl ModuleWriter<'_> {
    /// Returns the number of an attribute.
    pub(super) fn attribute(
        &mut self,
        value: &Attribute,
        dialect: TargetDialect,
        depth: usize,
    ) -> Result<u64> {
        ensure!(depth != MAX_DEPTH, refused(format!("attributes are nested deeper than {MAX_DEPTH}")));
        let depth = depth + 1;
        let mut out = ByteSink::default();
        match value {
            Attribute::Sharding(mesh, dims) => return Ok(self.sharding(mesh, dims)),
            Attribute::Unit => return Ok(self.tables.attribute("builtin", ByteSink::of([7]))),
            Attribute::Array(element, _) if element != "i64" && element != "i1" || dialect == Builtin => {
                return self.array(value, depth);
            }
            Attribute::Bool(b) if dialect == Vhlo => out.numbers_of([2, u64::from(*b)]),
            Attribute::Bool(b) => self.number_of("i1", u64::from(*b), 8, dialect, &mut out)?,
            Attribute::Int(n) => {
                self.number_of("i64", *n as u64, code_of(dialect, 9, 8), dialect, &mut out)?
            }
            Attribute::Float(digits, ty) => {
                let bits =
                    bits_of(digits, ty).ok_or_else(|| refused(format!("cannot write {digits} : {ty}")))?;
                self.number_of(ty, bits, code_of(dialect, 8, 9), dialect, &mut out)?;
            }
            Attribute::String(text) => out.numbers_of([code_of(dialect, 14, 2), self.tables.string(text)]),
            Attribute::Symbol(name) if dialect == Vhlo => out.numbers_of([14, self.tables.string(name)]),
            Attribute::Symbol(name) => return Ok(self.symbol(name)),
            Attribute::List(items) => {
                let numbers = self.all(items, dialect, depth)?;
                out.number(code_of(dialect, 1, 0));
                out.numbers(&numbers);
            }
            Attribute::Dictionary(entries) => {
                let entries = self.entries(entries, (dialect, dialect), depth)?;
                out.number(code_of(dialect, 6, 1));
                out.number(entries.len() as u64 / 2);
                entries.iter().for_each(|n| out.number(*n));
            }
            Attribute::Dense(dense) => self.dense(dense, dialect, depth, &mut out)?,
            Attribute::Type(ty) => out.numbers_of([code_of(dialect, 17, 6), self.ty(ty, dialect, depth)?]),
            Attribute::Other(ty, digits) if width(ty).is_some() => {
                let n: i128 = digits.parse().map_err(|_| refused(format!("cannot write {digits} : {ty}")))?;
                self.number_of(ty, n as u64, code_of(dialect, 9, 8), dialect, &mut out)?;
            }
            Attribute::Other(name, text) if name.starts_with("sdy.") => {
                return Ok(self.tables.attribute_text("sdy", &format!("#{name}<{text}>")));
            }
            _ if dialect == Vhlo => self.stablehlo(value, depth, &mut out)?,
            _ => return Err(refused(format!("cannot write attribute {value:?}"))),
        }
        let dialect = if matches!(value, Attribute::Array(..)) { Vhlo } else { dialect };
        Ok(self.tables.attribute(dialect.name(), out))
    }

    pub(super) fn all(
        &mut self,
        items: &[Attribute],
        dialect: TargetDialect,
        depth: usize,
    ) -> Result<Vec<u64>> {
        items.iter().map(|item| self.attribute(item, dialect, depth)).collect()
    }

    /// Writes names and values, sorted by name as in MLIR.
    pub(super) fn entries(
        &mut self,
        entries: &NamedAttributes,
        (names, values): (TargetDialect, TargetDialect),
        depth: usize,
    ) -> Result<Vec<u64>> {
        let mut sorted: Vec<_> = entries.iter().collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        let mut all = Vec::new();
        for (name, value) in sorted {
            all.push(self.attribute(&Attribute::String(name.clone()), names, depth)?);
            let value = match (name.as_str(), value) {
                ("tf.aliasing_output" | "mhlo.num_partitions" | "mhlo.num_replicas", Attribute::Int(n)) => {
                    Attribute::Other("i32".into(), n.to_string())
                }
                (_, value) => value.clone(),
            };
            all.push(self.attribute(&value, values, depth)?);
        }
        Ok(all)
    }

    /// Writes a builtin dictionary; its values may be VHLO's.
    pub(super) fn dictionary(&mut self, entries: &NamedAttributes, values: TargetDialect) -> Result<u64> {
        let numbers = self.entries(entries, (Builtin, values), 0)?;
        let mut out = ByteSink::of([1, numbers.len() as u64 / 2]);
        numbers.iter().for_each(|n| out.number(*n));
        Ok(self.tables.attribute("builtin", out))
    }

    /// Writes a code, a number type, and a number of it as bits.
    fn number_of(
        &mut self,
        ty: &str,
        bits: u64,
        code: u64,
        dialect: TargetDialect,
        out: &mut ByteSink,
    ) -> Result<()> {
        let ty_number = self.named(ty, dialect, 0)?;
        let width = width(ty).ok_or_else(|| refused(format!("expected a number type, got {ty}")))?;
        let bits = bits & u64::MAX >> (64 - width);
        out.numbers_of([code, ty_number]);
        match width {
            ..=8 => out.byte(bits as u8),
            _ => out.signed(bits as i64),
        }
        Ok(())
    }

    pub(super) fn symbol(&mut self, name: &str) -> u64 {
        let name = ByteSink::of([2, self.tables.string(name)]);
        let name = self.tables.attribute("builtin", name);
        self.tables.attribute("builtin", ByteSink::of([4, name]))
    }

    fn dense(
        &mut self,
        dense: &DenseElements,
        dialect: TargetDialect,
        depth: usize,
        out: &mut ByteSink,
    ) -> Result<()> {
        let ty = self.ty(&dense.ty, dialect, depth)?;
        out.numbers_of([code_of(dialect, 15, 18), ty]);
        out.blob(&bytes(dense, self.module)?);
        Ok(())
    }

    /// Writes `array<i32: 1, 2>`, which only the builtin dialect has.
    fn array(&mut self, value: &Attribute, depth: usize) -> Result<u64> {
        let Attribute::Array(element, items) = value else {
            return Err(refused("expected an array attribute"));
        };
        let mut raw = Vec::new();
        let size = width(element).unwrap_or(64).div_ceil(8) as usize;
        for item in items {
            let bits = match item {
                Attribute::Int(n) => *n as u64,
                Attribute::Bool(b) => u64::from(*b),
                Attribute::Float(digits, _) => bits_of(digits, element)
                    .ok_or_else(|| refused(format!("invalid element {digits} in an array of {element}")))?,
                _ => return Err(refused(format!("cannot write an array of {element}"))),
            };
            raw.extend(bits.to_le_bytes().iter().take(size));
        }
        let ty = self.ty(&MlirType::Scalar(element.clone()), Builtin, depth)?;
        let mut out = ByteSink::of([17, ty, items.len() as u64]);
        out.blob(&raw);
        Ok(self.tables.attribute("builtin", out))
    }
}

fn code_of(dialect: TargetDialect, vhlo: u64, builtin: u64) -> u64 {
    if dialect == Vhlo { vhlo } else { builtin }
}

/// StableHLO and Shardy attributes.
impl ModuleWriter<'_> {
    fn stablehlo(&mut self, value: &Attribute, depth: usize, out: &mut ByteSink) -> Result<()> {
        match value {
            Attribute::Array(element, items) => {
                let dense = of_ints(items, element)
                    .ok_or_else(|| refused(format!("cannot write an array of {element}")))?;
                self.dense(&dense, Vhlo, depth, out)
            }
            Attribute::Keyword(kind, word) => {
                let row = WORDS.iter().find(|(code, name, _)| kind == name || kind.parse() == Ok(*code));
                self.word(row, word, out)
            }
            Attribute::Other(kind, word) if kind == "stablehlo.result_accuracy_mode" => {
                self.word(WORDS.iter().find(|(code, ..)| *code == 19), word, out)
            }
            Attribute::Other(kind, text) if kind == "sub_axis" => {
                let parts = text.strip_prefix('(').and_then(|rest| rest.split_once(')'));
                let parts = parts.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                let (before, size) =
                    parts.ok_or_else(|| refused(format!("expected a sub-axis, got {text}")))?;
                out.number(21);
                [before, size].into_iter().for_each(|n| out.signed(n));
                Ok(())
            }
            Attribute::Struct(kind, fields) => self.structure(kind, fields, depth, out),
            other => Err(refused(format!("cannot write attribute {other:?}"))),
        }
    }

    fn word(&mut self, row: Option<&(u64, &str, &str)>, word: &str, out: &mut ByteSink) -> Result<()> {
        let found = row.and_then(|(code, _, words)| {
            Some((*code, words.split_ascii_whitespace().position(|w| w == word)?))
        });
        let (code, n) = found.ok_or_else(|| refused(format!("unknown enum value {word}")))?;
        out.numbers_of([code, n as u64]);
        Ok(())
    }

    fn structure(
        &mut self,
        kind: &str,
        given: &NamedAttributes,
        depth: usize,
        out: &mut ByteSink,
    ) -> Result<()> {
        let row = STRUCTURES.iter().find(|(_, name, ..)| *name == kind);
        let row = row.ok_or_else(|| refused(format!("cannot write attribute {kind}")))?;
        let &(code, _, since, fields) = row;
        self.since(since, &format!("`{kind}`"))?;
        out.number(code);
        let int = |value: &Attribute| match value {
            Attribute::Int(n) => i64::try_from(*n).ok(),
            _ => None,
        };
        for (name, field) in fields {
            let value = find(given, name);
            let wrong = || refused(format!("field `{name}` of {kind} is missing or invalid"));
            match (field, value) {
                (FieldEncoding::Ints, None) => out.signeds(&[]),
                (FieldEncoding::Ints, Some(Attribute::List(items) | Attribute::Array(_, items))) => {
                    out.signeds(&items.iter().map(int).collect::<Option<Vec<_>>>().ok_or_else(wrong)?);
                }
                (FieldEncoding::Int, value) => out.signed(value.map_or(Some(0), int).ok_or_else(wrong)?),
                (FieldEncoding::Float, Some(Attribute::Float(digits, _))) => {
                    out.signed(bits_of(digits, "f64").ok_or_else(wrong)? as i64);
                }
                (FieldEncoding::Attribute | FieldEncoding::Symbol, Some(value)) => {
                    out.number(self.attribute(value, Vhlo, depth)?);
                }
                (FieldEncoding::Tagged, None) => out.number(0),
                (FieldEncoding::Tagged, Some(value)) => {
                    out.numbers_of([1, self.attribute(value, Vhlo, depth)?])
                }
                (FieldEncoding::Flagged, None) => out.number(0),
                (FieldEncoding::Flagged, Some(value)) => {
                    out.flagged(self.attribute(value, Vhlo, depth)?, true)
                }
                _ => return Err(wrong()),
            }
        }
        Ok(())
    }

    /// Writes `#sdy.sharding<@mesh, [{"x"}, {}]>`
    fn sharding(&mut self, mesh: &str, dims: &[Vec<String>]) -> u64 {
        let dims: Vec<u64> = dims.iter().map(|axes| self.axes(axes)).collect();
        let mut out = ByteSink::of([6, self.symbol(mesh)]);
        out.numbers(&dims);
        out.numbers(&[]);
        self.tables.attribute("sdy", out)
    }

    /// Writes the axes of a dimension.
    fn axes(&mut self, axes: &[String]) -> u64 {
        let mut numbers = Vec::new();
        for axis in axes.iter().filter(|a| *a != OPEN) {
            let axis = ByteSink::of([4, self.tables.string(axis), 0]);
            numbers.push(self.tables.attribute("sdy", axis));
        }
        let mut out = ByteSink::of([5]);
        out.numbers(&numbers);
        out.byte(u8::from(!axes.iter().any(|a| a == OPEN)));
        out.flagged(0, false);
        self.tables.attribute("sdy", out)
    }

    /// Writes `<["x"=2, "y"=4], device_ids=[…]>`
    pub(super) fn mesh(&mut self, mesh: &ShardyMesh) -> u64 {
        let mut numbers = Vec::new();
        for (name, size) in &mesh.axes {
            let mut out = ByteSink::of([1, self.tables.string(name)]);
            out.signed(*size as i64);
            numbers.push(self.tables.attribute("sdy", out));
        }
        let mut out = ByteSink::of([2]);
        out.numbers(&numbers);
        out.number(mesh.devices.len() as u64);
        mesh.devices.iter().for_each(|device| out.signed(*device as i64));
        self.tables.attribute("sdy", out)
    }

    /// Writes a Shardy list: shardings, or axis names.
    pub(super) fn shardy_list(&mut self, items: &[Attribute]) -> Result<u64> {
        let is_names = items.iter().all(|item| matches!(item, Attribute::String(_)));
        let numbers = self.all(items, Builtin, 0)?;
        let mut out = ByteSink::of([if is_names && !items.is_empty() { 0 } else { 7 }]);
        out.numbers(&numbers);
        Ok(self.tables.attribute("sdy", out))
    }
}
