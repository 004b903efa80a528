//! Parses types and attributes in MLIR text.

use super::MlirParser;
use crate::syntax::{
    Attribute, DenseElements, ElementData, MlirType, NamedAttributes, OPEN, RankedTensorType,
};
use systole_base::{Error, ErrorKind, Result, ensure};
use systole_ir::text::Token;
use systole_ir::text::cursor::{MAX_DEPTH, TextReader, TokenCursor};
use systole_ir::text::parse_hex;

/// Types.
impl<'a> MlirParser<'a> {
    /// Parses `(…) -> …`, or one type for all operands and results.
    pub(super) fn function_type(&mut self) -> Result<(Vec<MlirType>, Vec<MlirType>)> {
        let from = self.list('(', ')', Self::ty)?;
        self.expect_arrow()?;
        Ok((from, self.result_types()?))
    }

    /// Parses `tensor<…>` or `(tensor<…>, …)`
    pub(super) fn result_types(&mut self) -> Result<Vec<MlirType>> {
        if self.is('(') { self.list('(', ')', Self::ty) } else { Ok(vec![self.ty()?]) }
    }

    pub(super) fn ty(&mut self) -> Result<MlirType> {
        self.deeper(Self::shallow_type)
    }

    fn shallow_type(&mut self) -> Result<MlirType> {
        let at = self.at;
        match self.token {
            Token::Word("tensor") => {
                self.advance()?;
                let inner = self.angles()?;
                ranked(inner).map_err(|what| self.error_at(at, format!("tensor<{inner}> {what}")))
            }
            Token::Word("tuple") => {
                self.advance()?;
                Ok(MlirType::Tuple(self.list('<', '>', Self::ty)?))
            }
            Token::Word(name @ ("complex" | "memref" | "vector")) => {
                self.advance()?;
                Ok(MlirType::Scalar(format!("{name}<{}>", self.angles()?)))
            }
            Token::Word(name) => {
                self.advance()?;
                Ok(MlirType::Scalar(name.into()))
            }
            Token::Mark('(') => {
                let (from, to) = self.function_type()?;
                Ok(MlirType::Function(from, to))
            }
            Token::Bang("stablehlo.token" | "mhlo.token") => {
                self.advance()?;
                Ok(MlirType::Token)
            }
            Token::Bang(name) => {
                self.advance()?;
                if let Some(Attribute::Type(ty)) = self.aliases.get(name) {
                    return Ok(ty.clone());
                }
                let inner = if self.is('<') { format!("<{}>", self.angles()?) } else { String::new() };
                Ok(MlirType::Other(format!("!{name}{inner}")))
            }
            _ => Err(self.unexpected("a type")),
        }
    }
}

/// Parses `2x?x3xf32, #encoding` as a type.
fn ranked(inner: &str) -> Result<MlirType, String> {
    let (shape, encoding) = match inner.split_once(',') {
        // A comma within the element type does not start an encoding: `complex<…>` and quantized types have brackets.
        Some((shape, rest)) if shape.matches('<').count() == shape.matches('>').count() => {
            (shape, Some(rest.trim().to_string()))
        }
        _ => (inner, None),
    };
    let mut rest = shape.trim();
    let mut dims = Vec::new();
    while let Some((size, after)) = rest.split_once('x') {
        match size.trim() {
            "?" => dims.push(None),
            digits if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                let size = digits.parse::<u64>().ok().filter(|n| *n < 1 << 48);
                dims.push(Some(size.ok_or("has a size that is too large")?));
            }
            "*" => return Err("has no rank; unranked tensors are not supported".into()),
            _ => break,
        }
        rest = after.trim_start();
    }
    let element = rest.trim();
    let starts_well = element.starts_with(|c: char| c.is_ascii_alphabetic() || c == '!');
    ensure!(starts_well && dims.len() <= MAX_DEPTH, "is not a tensor type".into());
    Ok(MlirType::Tensor(RankedTensorType { dims, element: element.into(), encoding }))
}

/// Attributes.
impl<'a> MlirParser<'a> {
    /// Parses `{name = value, flag, …}`
    pub(super) fn dictionary(&mut self) -> Result<NamedAttributes> {
        self.entries(|| Attribute::Unit, Self::attribute)
    }

    pub(super) fn attribute(&mut self) -> Result<Attribute> {
        self.deeper(Self::shallow_attribute)
    }

    fn shallow_attribute(&mut self) -> Result<Attribute> {
        match self.token.clone() {
            Token::Number(_) => self.number(),
            Token::Str(s) => {
                self.advance()?;
                if self.eat(':')? {
                    self.ty()?;
                }
                Ok(Attribute::String(s))
            }
            Token::Word(word @ ("true" | "false")) => {
                self.advance()?;
                Ok(Attribute::Bool(word == "true"))
            }
            Token::Word("unit") => {
                self.advance()?;
                Ok(Attribute::Unit)
            }
            Token::Word("array") => self.array(),
            Token::Word("dense") => Ok(Attribute::Dense(self.dense()?)),
            Token::Word("dense_resource") => self.dense_resource(),
            Token::Word("loc") => {
                self.location()?;
                Ok(Attribute::Unit)
            }
            Token::Word(word @ ("affine_map" | "sparse" | "opaque" | "distinct" | "strided")) => {
                self.advance()?;
                Ok(Attribute::Other(word.into(), self.angles()?.into()))
            }
            Token::Symbol(mut name) => {
                self.advance()?;
                while self.eat(':')? {
                    self.expect(':')?;
                    name = format!("{name}::@{}", self.symbol()?);
                }
                Ok(Attribute::Symbol(name))
            }
            Token::Mark('[') => Ok(Attribute::List(self.list('[', ']', Self::attribute)?)),
            Token::Mark('{') => {
                self.open += 1;
                let entries = self.dictionary();
                self.open -= 1;
                entries.map(Attribute::Dictionary)
            }
            Token::Attr(kind) => self.dialect_attribute(kind),
            Token::Word(_) | Token::Bang(_) | Token::Mark('(') => Ok(Attribute::Type(self.ty()?)),
            _ => Err(self.unexpected("an attribute")),
        }
    }

    /// Parses `3 : i64`, `1.5 : f32`, `0x7FC00000 : f32`
    fn number(&mut self) -> Result<Attribute> {
        let Token::Number(digits) = self.token else { return Err(self.unexpected("a number")) };
        let at = self.at;
        self.advance()?;
        let ty = if self.eat(':')? { Some(self.ty()?) } else { None };
        let of_floats = matches!(&ty, Some(MlirType::Scalar(name)) if name.starts_with(['f', 'b']));
        let is_hex = digits.starts_with("0x");
        if of_floats || (!is_hex && digits.contains(['.', 'e', 'E'])) {
            let name = ty.map_or("f64".into(), |ty| ty.to_string());
            return Ok(Attribute::Float(digits.into(), name));
        }
        let value = match digits.strip_prefix("0x") {
            Some(hex) => i128::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        };
        let value = value.ok_or_else(|| self.error_at(at, format!("invalid number `{digits}`")))?;
        // Dictionary values keep their types, since readers may need them.
        match ty {
            Some(MlirType::Scalar(name)) if self.open > 0 && name != "i64" => {
                Ok(Attribute::Other(name, value.to_string()))
            }
            _ => Ok(Attribute::Int(value)),
        }
    }

    /// Parses `array<i64: 1, 2>`
    fn array(&mut self) -> Result<Attribute> {
        self.advance()?;
        self.expect('<')?;
        let element = self.word()?.to_string();
        let items = if self.eat(':')? { self.separated(Self::attribute)? } else { Vec::new() };
        self.expect('>')?;
        Ok(Attribute::Array(element, items))
    }

    /// Parses `#name`, `#dialect<…>`, `#dialect.kind<…>`
    fn dialect_attribute(&mut self, kind: &'a str) -> Result<Attribute> {
        self.advance()?;
        if let Some(known) = self.aliases.get(kind).filter(|_| !self.is('<')) {
            return Ok(known.clone());
        }
        let (dialect, kind) = kind.split_once('.').unwrap_or((kind, ""));
        match (dialect, kind) {
            ("stablehlo" | "mhlo" | "chlo", "") => {
                self.expect('<')?;
                let of = self.word()?.to_string();
                // Old writers print `#stablehlo<conv …>` in this form.
                let word = self.word()?.to_string();
                self.expect('>')?;
                Ok(Attribute::Keyword(of, word))
            }
            ("stablehlo" | "mhlo", "conv") => {
                self.expect('<')?;
                let layouts = self.layouts()?;
                self.expect('>')?;
                Ok(Attribute::Convolution(layouts))
            }
            ("sdy", "sharding") => self.sharding(),
            ("stablehlo" | "mhlo" | "chlo", _) if self.is('<') => self.structure(kind),
            _ => {
                let inner = if self.is('<') { self.angles()? } else { "" };
                let name = if kind.is_empty() { dialect.to_string() } else { format!("{dialect}.{kind}") };
                Ok(Attribute::Other(name, inner.into()))
            }
        }
    }

    /// Parses `<field = value, …>`; values may be words: `<lhs_precision_type = tf32>`.
    pub(super) fn structure(&mut self, kind: &str) -> Result<Attribute> {
        let is_flat = matches!(kind, "bounds" | "type_extensions" | "result_accuracy_mode");
        if is_flat {
            return Ok(Attribute::Other(format!("stablehlo.{kind}"), self.angles()?.into()));
        }
        let fields = self.list('<', '>', |p| {
            let name = p.word()?.to_string();
            p.expect('=')?;
            if name == "sub_axis_info" {
                return Ok((name, p.sub_axis()?));
            }
            Ok((name, p.attribute()?))
        })?;
        Ok(Attribute::Struct(kind.into(), fields))
    }

    /// Parses a sub-axis: `(1)2`.
    fn sub_axis(&mut self) -> Result<Attribute> {
        self.expect('(')?;
        let before = self.int()?;
        self.expect(')')?;
        Ok(Attribute::Other("sub_axis".into(), format!("({before}){}", self.int()?)))
    }

    /// Parses `<@mesh, [{"data"}, {}], replicated={…}>`; everything except the axes is ignored.
    pub(super) fn sharding(&mut self) -> Result<Attribute> {
        let at = self.at;
        let text = self.angles()?;
        let wrong = |e: Error| self.error_at(at, format!("`#sdy.sharding<{text}>`: {}", e.what()));
        let mut inner = MlirParser::new(text).map_err(wrong)?;
        let read = |p: &mut MlirParser<'_>| {
            let mesh = p.symbol()?;
            p.expect(',')?;
            let dims = p.list('[', ']', |p| {
                let axes = p.list('{', '}', Self::axis)?;
                // A priority.
                if matches!(p.token, Token::Word(word) if word.starts_with('p')) {
                    p.advance()?;
                }
                Ok(axes)
            })?;
            let mut unreduced = Vec::new();
            while p.eat(',')? {
                let word = p.word()?.to_string();
                p.expect('=')?;
                let axes = p.list('{', '}', Self::axis)?.into_iter().map(Attribute::String);
                if word == "unreduced" {
                    unreduced.extend(axes);
                }
            }
            Ok(unreduced_along(Attribute::Sharding(mesh, dims), unreduced))
        };
        read(&mut inner).map_err(wrong)
    }

    /// Parses `"data"`, `"data":(1)2`, `?`; priorities follow the braces.
    fn axis(p: &mut MlirParser<'_>) -> Result<String> {
        if p.eat('?')? {
            return Ok(OPEN.into());
        }
        let name = p.string()?;
        if !p.eat(':')? {
            return Ok(name);
        }
        p.expect('(')?;
        let before = p.int()?;
        p.expect(')')?;
        Ok(format!("{name}:({before}){}", p.int()?))
    }
}

/// Returns the sharding with `unreduced` axes, along which devices hold terms of a sum; unchanged if there are none.
pub fn unreduced_along(sharding: Attribute, unreduced: Vec<Attribute>) -> Attribute {
    match unreduced.is_empty() {
        true => sharding,
        false => Attribute::Struct(
            "sdy.unreduced".into(),
            vec![("sharding".into(), sharding), ("axes".into(), Attribute::List(unreduced))],
        ),
    }
}

/// Arrays.
impl MlirParser<'_> {
    /// Parses `dense<…> : tensor<…>`
    pub(super) fn dense(&mut self) -> Result<DenseElements> {
        let elements = self.elements()?;
        self.expect(':')?;
        Ok(DenseElements { ty: self.ty()?, elements })
    }

    /// Parses `dense<…>`
    pub(super) fn elements(&mut self) -> Result<ElementData> {
        let at = self.at;
        self.advance()?;
        self.expect('<')?;
        let elements = match self.token.clone() {
            Token::Mark('>') => ElementData::None,
            Token::Str(s) => {
                self.advance()?;
                let bytes = parse_hex(&s);
                ElementData::Bytes(
                    bytes.ok_or_else(|| self.error_at(at, "expected a string of \"0x\" and hex digits"))?,
                )
            }
            Token::Mark('[') => {
                let (mut dims, mut words) = (Vec::new(), Vec::new());
                self.nested(0, &mut dims, &mut words, element)?;
                ElementData::List(dims, words)
            }
            _ => {
                let mut words = Vec::new();
                element(&mut self.cursor, &mut words)?;
                ElementData::Splat(words)
            }
        };
        self.expect('>')?;
        Ok(elements)
    }

    /// Parses `dense_resource<name> : tensor<…>`
    fn dense_resource(&mut self) -> Result<Attribute> {
        self.advance()?;
        let name = self.angles()?.trim().trim_matches('"').to_string();
        self.expect(':')?;
        Ok(Attribute::Dense(DenseElements { ty: self.ty()?, elements: ElementData::Resource(name) }))
    }
}

/// Parses `1`, `true`, `0x7F`, `(1.0, 2.0)`
fn element(c: &mut TokenCursor<'_>, words: &mut Vec<String>) -> Result<()> {
    match c.token {
        Token::Word(w @ ("true" | "false")) => words.push(w.into()),
        Token::Number(n) => words.push(n.into()),
        Token::Mark('(') => return c.list('(', ')', |c| element(c, words)).map(drop),
        _ => return Err(c.unexpected("an element")),
    }
    c.advance().map(drop)
}

/// Returns an `Unsupported` error.
pub(super) fn not_read(what: String) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}
