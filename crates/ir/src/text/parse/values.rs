//! Parses types, attributes and dense arrays in StableHLO text.

use super::super::cursor::{MAX_DEPTH, TextReader, TokenCursor};
use super::super::dense::{parse_element, parse_hex};
use super::super::lexer::Token;
use crate::op::{AttrField, ConvDims, op_source::AttrValue};
use crate::{Mesh, ensure};
use systole_base::{DType, Dims, Literal, Result, TensorType};

/// Maximum size of an array type in bytes: short malicious text could name any size.
const MAX_TENSOR_BYTES: usize = 1 << 40;
/// Maximum size or number in attributes, so that shape arithmetic cannot overflow.
const MAX_NUMBER: i64 = 1 << 31;

/// Types and attributes.
impl<'a> TokenCursor<'a> {
    /// `: (tensor<…>, …) -> tensor<…>` or `-> (…)`
    pub(super) fn function_type(&mut self) -> Result<(Vec<TensorType>, Vec<TensorType>)> {
        self.expect(':')?;
        let from = self.list('(', ')', Self::tensor_type)?;
        self.expect_arrow()?;
        let to =
            if self.is('(') { self.list('(', ')', Self::tensor_type)? } else { vec![self.tensor_type()?] };
        Ok((from, to))
    }

    /// `tensor<2x3xf32>`
    pub(super) fn tensor_type(&mut self) -> Result<TensorType> {
        let at = self.at;
        ensure!(self.eat_word("tensor")? && self.is('<'), self.error_at(at, "expected a tensor type"));
        let inner = self.angles()?;
        let wrong = |what: &str| self.error_at(at, format!("tensor<{inner}> {what}"));
        let (dims, dtype) = inner.rsplit_once('x').map_or((None, inner), |(dims, d)| (Some(dims), d));
        let dtype = DType::parse(dtype.trim())
            .filter(|d| d.name() == dtype.trim())
            .ok_or_else(|| wrong("has an unknown element type"))?;
        let size =
            |d: &str| d.trim().parse::<usize>().ok().filter(|&d| d as i64 <= MAX_NUMBER && d < 1 << 32);
        let dims: Option<Dims> = dims.map_or(Some(Dims::new()), |dims| dims.split('x').map(size).collect());
        let dims = dims.ok_or_else(|| wrong("has a size that is not an integer or is too large"))?;
        // Sizes of zero must not hide an overflow of the others: strides are products too.
        let bytes = dims.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d.max(1)));
        match bytes {
            Some(n) if n <= MAX_TENSOR_BYTES => Ok(TensorType::new(dtype, &dims[..])),
            _ => Err(wrong("is too large")),
        }
    }

    /// `{name = value, flag, …}`
    pub(super) fn dictionary(&mut self) -> Result<Vec<(String, AttrValue)>> {
        self.entries(|| AttrValue::Other, Self::attribute)
    }

    fn attribute(&mut self) -> Result<AttrValue> {
        self.deeper(Self::shallow_attribute)
    }

    fn shallow_attribute(&mut self) -> Result<AttrValue> {
        Ok(match self.token.clone() {
            Token::Number(_) => self.typed_number()?,
            Token::Str(s) => {
                self.advance()?;
                AttrValue::Str(s)
            }
            Token::Word(word @ ("true" | "false")) => {
                self.advance()?;
                AttrValue::Bool(word == "true")
            }
            Token::Word("array") => self.array()?,
            Token::Word("dense") => AttrValue::Dense(self.dense()?),
            Token::Word("unit") | Token::Symbol(_) => {
                self.advance()?;
                AttrValue::Other
            }
            Token::Mark('[') => {
                self.list('[', ']', Self::attribute)?;
                AttrValue::Other
            }
            Token::Mark('{') => {
                self.dictionary()?;
                AttrValue::Other
            }
            Token::Attr("stablehlo.conv") => self.conv()?,
            Token::Attr("sdy.sharding") => self.split()?,
            Token::Attr(kind) => self.hash_attribute(kind)?,
            _ => return Err(self.unexpected("an attribute")),
        })
    }

    /// `3 : i64`; a non-integer number is accepted, but no op uses it.
    fn typed_number(&mut self) -> Result<AttrValue> {
        let value = match self.token {
            Token::Number(digits) if !digits.contains(['.', 'e', 'x']) => AttrValue::Int(self.int()?),
            _ => {
                self.advance()?;
                AttrValue::Other
            }
        };
        if self.eat(':')? {
            self.word()?;
        }
        Ok(value)
    }

    fn int(&mut self) -> Result<i64> {
        let Token::Number(digits) = self.token else { return Err(self.unexpected("a number")) };
        let value = digits.parse::<i64>().ok().filter(|v| (-MAX_NUMBER..=MAX_NUMBER).contains(v));
        let value =
            value.ok_or_else(|| self.error(format!("expected an integer below 2³¹, got `{digits}`")))?;
        self.advance()?;
        Ok(value)
    }

    /// Parses an integer from 0 to `max`.
    pub(super) fn size(&mut self, max: i64) -> Result<usize> {
        let at = self.at;
        match self.int()? {
            v if (0..=max).contains(&v) => Ok(v as usize),
            v => Err(self.error_at(at, format!("expected a number between 0 and {max}, got {v}"))),
        }
    }

    /// `array<i64: 1, 2>`
    fn array(&mut self) -> Result<AttrValue> {
        self.advance()?;
        self.expect('<')?;
        let value = match (self.word()?, self.eat(':')?) {
            ("i1", false) => AttrValue::Bools(Vec::new()),
            ("i1", true) => AttrValue::Bools(self.separated(Self::bool)?),
            ("i64" | "i32", false) => AttrValue::Ints(Vec::new()),
            ("i64" | "i32", true) => AttrValue::Ints(self.separated(Self::int)?),
            (other, _) => {
                return Err(self.error(format!("unsupported array attribute of element type {other}")));
            }
        };
        self.expect('>')?;
        Ok(value)
    }

    fn bool(&mut self) -> Result<bool> {
        match self.word()? {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(self.error(format!("expected a bool, found `{other}`"))),
        }
    }

    /// `#stablehlo<kind WORD>` or `#stablehlo.kind<field = …, …>`
    fn hash_attribute(&mut self, kind: &str) -> Result<AttrValue> {
        self.advance()?;
        if kind == "stablehlo" {
            self.expect('<')?;
            let value = AttrValue::Keyword(self.word()?.to_string(), self.word()?.to_string());
            self.expect('>')?;
            return Ok(value);
        }
        let fields = self.list('<', '>', |p| {
            let name = p.word()?.to_string();
            p.expect('=')?;
            let field = if p.is('[') {
                AttrField::List(p.list('[', ']', Self::int)?)
            } else {
                AttrField::Int(p.int()?)
            };
            Ok((name, field))
        })?;
        Ok(AttrValue::Struct(kind.strip_prefix("stablehlo.").unwrap_or(kind).to_string(), fields))
    }

    /// `#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>`
    fn conv(&mut self) -> Result<AttrValue> {
        let at = self.at;
        self.advance()?;
        self.expect('<')?;
        let layouts = self.layouts()?;
        self.expect('>')?;
        ConvDims::of_layouts(&layouts).map(AttrValue::Conv).map_err(|what| self.error_at(at, what))
    }

    /// `#sdy.sharding<@mesh, [{"data"}, {}]>`
    fn split(&mut self) -> Result<AttrValue> {
        self.advance()?;
        self.expect('<')?;
        self.symbol()?;
        self.expect(',')?;
        let dims = self.list('[', ']', |p| p.list('{', '}', |p| p.string()))?;
        self.expect('>')?;
        Ok(AttrValue::Split(dims))
    }

    /// `sdy.mesh @mesh = <["data"=4, "model"=2]>`, if present.
    pub(super) fn mesh(&mut self) -> Result<Option<Mesh>> {
        let at = self.at;
        if !self.eat_word("sdy.mesh")? {
            return Ok(None);
        }
        self.symbol()?;
        self.expect('=')?;
        self.expect('<')?;
        let axes = self.list('[', ']', |p| {
            let name = p.string()?;
            p.expect('=')?;
            Ok((name, p.size(MAX_NUMBER)?))
        })?;
        self.expect('>')?;
        Mesh::new(axes).map(Some).map_err(|e| self.error_at(at, e.what()))
    }

    /// `#loc1 = loc("x")` before and after the module.
    pub(super) fn named_locations(&mut self) -> Result<()> {
        while let Token::Attr(_) = self.token {
            self.advance()?;
            self.expect('=')?;
            self.location()?;
        }
        Ok(())
    }
}

/// Elements of a dense array as written; the type follows them.
enum DenseText<'a> {
    None,
    Splat(&'a str),
    Bytes(String),
    List(Vec<usize>, Vec<&'a str>),
}

/// Dense arrays.
impl<'a> TokenCursor<'a> {
    /// `dense<…> : tensor<…>`
    fn dense(&mut self) -> Result<Literal> {
        let at = self.at;
        self.advance()?;
        self.expect('<')?;
        let elements = match self.token.clone() {
            Token::Mark('>') => DenseText::None,
            Token::Str(s) => {
                self.advance()?;
                DenseText::Bytes(s)
            }
            Token::Mark('[') => {
                let (mut dims, mut words) = (Vec::new(), Vec::new());
                self.nested(0, &mut dims, &mut words, |p, words| p.element().map(|w| words.push(w)))?;
                DenseText::List(dims, words)
            }
            _ => DenseText::Splat(self.element()?),
        };
        self.expect('>')?;
        self.expect(':')?;
        let ty = self.tensor_type()?;
        self.literal(ty, elements).map_err(|what| self.error_at(at, what))
    }

    fn element(&mut self) -> Result<&'a str> {
        let (Token::Word(word @ ("true" | "false")) | Token::Number(word)) = self.token else {
            return Err(self.unexpected("an element"));
        };
        self.advance()?;
        Ok(word)
    }

    /// Parses nested lists `[[…], […]]` in StableHLO text, with `element` for the innermost items. All lists of one
    /// depth must have the same length.
    pub fn nested<W>(
        &mut self,
        depth: usize,
        dims: &mut Vec<usize>,
        words: &mut Vec<W>,
        element: fn(&mut Self, &mut Vec<W>) -> Result<()>,
    ) -> Result<()> {
        let at = self.at;
        if !self.is('[') {
            return if dims.len() > depth { Err(self.unexpected("a list")) } else { element(self, words) };
        }
        let first_here = dims.len() == depth;
        if first_here {
            if depth == MAX_DEPTH || !words.is_empty() {
                return Err(self.error("nested lists have different depths or are too deep"));
            }
            dims.push(0);
        }
        let n = self.list('[', ']', |p| p.nested(depth + 1, dims, words, element))?.len();
        if first_here {
            dims[depth] = n;
        }
        if dims[depth] == n { Ok(()) } else { Err(self.error_at(at, "nested lists have different lengths")) }
    }

    fn literal(&mut self, ty: TensorType, elements: DenseText<'a>) -> Result<Literal, String> {
        let size = ty.dtype.size();
        let bits = |word: &str| parse_element(word, ty.dtype).map(|b| b.to_le_bytes()[..size].to_vec());
        let bytes = match elements {
            DenseText::None if ty.elements() == 0 => Vec::new(),
            DenseText::None => return Err(format!("elements of {ty} are missing")),
            DenseText::Splat(word) => {
                self.unfold(ty.bytes())?;
                bits(word)?.repeat(ty.elements())
            }
            DenseText::Bytes(text) => parse_hex(&text).ok_or("expected \"0x\" and pairs of hex digits")?,
            DenseText::List(dims, words) => {
                if dims[..] != ty.shape[..] {
                    return Err(format!("the list has shape {dims:?}, expected that of {ty}"));
                }
                words.into_iter().map(bits).collect::<Result<Vec<_>, _>>()?.concat()
            }
        };
        Literal::from_bytes(ty, &bytes).map_err(|e| e.to_string())
    }
}
