//! Types, attributes and arrays in text.

use super::super::dense::{parse_element, parse_hex};
use super::super::lex::Token;
use super::{MAX_DEPTH, Parser};
use crate::Mesh;
use crate::op::source::Value;
use crate::op::{ConvDims, Field};
use systole_base::{DType, Dims, Literal, Result, TensorType};

/// Bytes of an array that text may name. No text of that size is needed to ask for them.
const MAX_TENSOR_BYTES: usize = 1 << 40;
/// Bytes that all `dense<0.0>` of one text may unfold to.
const MAX_SPLAT_BYTES: usize = 1 << 28;
/// Greatest size or number in attributes, so that shape arithmetic cannot overflow.
const MAX_NUMBER: i64 = 1 << 31;

/// Types and attributes.
impl<'a> Parser<'a> {
    /// `: (tensor<…>, …) -> tensor<…>` or `-> (…)`
    pub(super) fn function_type(&mut self) -> Result<(Vec<TensorType>, Vec<TensorType>)> {
        self.expect(':')?;
        let from = self.list('(', ')', Self::tensor_type)?;
        if self.token != Token::Arrow {
            return Err(self.unexpected("`->`"));
        }
        self.advance()?;
        let to =
            if self.is('(') { self.list('(', ')', Self::tensor_type)? } else { vec![self.tensor_type()?] };
        Ok((from, to))
    }

    /// `tensor<2x3xf32>`
    pub(super) fn tensor_type(&mut self) -> Result<TensorType> {
        let at = self.at;
        if !self.eat_word("tensor")? || !self.is('<') {
            return Err(self.lexer.error(at, "expected a tensor type"));
        }
        let inner = self.lexer.until_close()?;
        self.advance()?;
        let wrong = |what: &str| self.lexer.error(at, format!("tensor<{inner}> {what}"));
        let (dims, dtype) = inner.rsplit_once('x').map_or((None, inner), |(dims, d)| (Some(dims), d));
        let dtype = DType::parse(dtype.trim())
            .filter(|d| d.name() == dtype.trim())
            .ok_or_else(|| wrong("has an element type that is not known here"))?;
        let size =
            |d: &str| d.trim().parse::<usize>().ok().filter(|&d| d as i64 <= MAX_NUMBER && d < 1 << 32);
        let dims: Option<Dims> = dims.map_or(Some(Dims::new()), |dims| dims.split('x').map(size).collect());
        let dims = dims.ok_or_else(|| wrong("has a size that is no number or too large"))?;
        // Zero sizes must not hide an overflow of the others: strides are products too.
        let bytes = dims.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d.max(1)));
        match bytes {
            Some(n) if n <= MAX_TENSOR_BYTES => Ok(TensorType::new(dtype, &dims[..])),
            _ => Err(wrong("is too large")),
        }
    }

    /// `{name = value, flag, …}`
    pub(super) fn dictionary(&mut self) -> Result<Vec<(String, Value)>> {
        let entries = self.list('{', '}', |p| {
            let at = p.at;
            let name = match p.advance()? {
                Token::Word(w) => w.to_string(),
                Token::Str(s) => s,
                other => {
                    return Err(p.lexer.error(at, format!("expected an attribute, found {}", other.show())));
                }
            };
            let value = if p.eat('=')? { p.attribute()? } else { Value::Other };
            Ok((name, value))
        })?;
        for (i, (name, _)) in entries.iter().enumerate() {
            if entries[..i].iter().any(|(n, _)| n == name) {
                return Err(self.error(format!("the attribute `{name}` is given twice")));
            }
        }
        Ok(entries)
    }

    fn attribute(&mut self) -> Result<Value> {
        self.deeper()?;
        let value = match self.token.clone() {
            Token::Number(_) => self.typed_number()?,
            Token::Str(s) => {
                self.advance()?;
                Value::Str(s)
            }
            Token::Word(word @ ("true" | "false")) => {
                self.advance()?;
                Value::Bool(word == "true")
            }
            Token::Word("array") => self.array()?,
            Token::Word("dense") => Value::Dense(self.dense()?),
            Token::Word("unit") | Token::Symbol(_) => {
                self.advance()?;
                Value::Other
            }
            Token::Mark('[') => {
                self.list('[', ']', Self::attribute)?;
                Value::Other
            }
            Token::Mark('{') => {
                self.dictionary()?;
                Value::Other
            }
            Token::Attr("stablehlo.conv") => self.conv()?,
            Token::Attr("sdy.sharding") => self.split()?,
            Token::Attr(kind) => self.hash_attribute(kind)?,
            _ => return Err(self.unexpected("an attribute")),
        };
        self.depth -= 1;
        Ok(value)
    }

    /// `3 : i64`; a number that is no integer is accepted and means nothing to any op.
    fn typed_number(&mut self) -> Result<Value> {
        let value = match self.token {
            Token::Number(digits) if !digits.contains(['.', 'e', 'x']) => Value::Int(self.int()?),
            _ => {
                self.advance()?;
                Value::Other
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
        let value = value.ok_or_else(|| self.error(format!("`{digits}` is not an integer below 2³¹")))?;
        self.advance()?;
        Ok(value)
    }

    pub(super) fn size(&mut self, max: i64) -> Result<usize> {
        let at = self.at;
        match self.int()? {
            v if (0..=max).contains(&v) => Ok(v as usize),
            v => Err(self.lexer.error(at, format!("{v} is not between 0 and {max}"))),
        }
    }

    /// `array<i64: 1, 2>`
    fn array(&mut self) -> Result<Value> {
        self.advance()?;
        self.expect('<')?;
        let bools = match self.word()? {
            "i1" => true,
            "i64" | "i32" => false,
            other => return Err(self.error(format!("no op takes an array of {other}"))),
        };
        let (mut ints, mut flags) = (Vec::new(), Vec::new());
        if self.eat(':')? {
            loop {
                if bools {
                    flags.push(match self.word()? {
                        "true" => true,
                        "false" => false,
                        other => return Err(self.error(format!("expected a bool, found `{other}`"))),
                    });
                } else {
                    ints.push(self.int()?);
                }
                if !self.eat(',')? {
                    break;
                }
            }
        }
        self.expect('>')?;
        Ok(if bools { Value::Bools(flags) } else { Value::Ints(ints) })
    }

    /// `#stablehlo<kind WORD>` or `#stablehlo.kind<field = …, …>`
    fn hash_attribute(&mut self, kind: &str) -> Result<Value> {
        self.advance()?;
        if kind == "stablehlo" {
            self.expect('<')?;
            let value = Value::Keyword(self.word()?.to_string(), self.word()?.to_string());
            self.expect('>')?;
            return Ok(value);
        }
        let fields = self.list('<', '>', |p| {
            let name = p.word()?.to_string();
            p.expect('=')?;
            let field =
                if p.is('[') { Field::List(p.list('[', ']', Self::int)?) } else { Field::Int(p.int()?) };
            Ok((name, field))
        })?;
        Ok(Value::Struct(kind.strip_prefix("stablehlo.").unwrap_or(kind).to_string(), fields))
    }

    /// `#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>`
    fn conv(&mut self) -> Result<Value> {
        self.advance()?;
        self.expect('<')?;
        let (input_batch, input_feature, input_spatial) = self.layout("b", "f")?;
        if !self.eat_word("x")? {
            return Err(self.unexpected("`x`"));
        }
        let (kernel_input_feature, kernel_output_feature, kernel_spatial) = self.layout("i", "o")?;
        if self.token != Token::Arrow {
            return Err(self.unexpected("`->`"));
        }
        self.advance()?;
        let (output_batch, output_feature, output_spatial) = self.layout("b", "f")?;
        self.expect('>')?;
        Ok(Value::Conv(ConvDims {
            input_batch,
            input_feature,
            input_spatial,
            kernel_input_feature,
            kernel_output_feature,
            kernel_spatial,
            output_batch,
            output_feature,
            output_spatial,
        }))
    }

    /// `#sdy.sharding<@mesh, [{"data"}, {}]>`
    fn split(&mut self) -> Result<Value> {
        self.advance()?;
        self.expect('<')?;
        self.symbol()?;
        self.expect(',')?;
        let dims = self.list('[', ']', |p| p.list('{', '}', Self::string))?;
        self.expect('>')?;
        Ok(Value::Split(dims))
    }

    /// `sdy.mesh @mesh = <["data"=4, "model"=2]>`, where it stands.
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
        Mesh::new(axes).map(Some).map_err(|e| self.lexer.error(at, e.what()))
    }

    /// `@name`
    pub(super) fn symbol(&mut self) -> Result<String> {
        match self.advance()? {
            Token::Symbol(name) => Ok(name),
            other => Err(self.error(format!("expected a name after `@`, found {}", other.show()))),
        }
    }

    /// `"text"`
    fn string(&mut self) -> Result<String> {
        match self.advance()? {
            Token::Str(text) => Ok(text),
            other => Err(self.error(format!("expected a string, found {}", other.show()))),
        }
    }

    /// `[b, 0, 1, f]` as the places of `b`, of `f` and of each number.
    fn layout(&mut self, first: &str, second: &str) -> Result<(usize, usize, Dims)> {
        let at = self.at;
        let words = self.list('[', ']', |p| match p.token {
            Token::Word(w) | Token::Number(w) => {
                p.advance()?;
                Ok(w)
            }
            _ => Err(p.unexpected("a letter or number")),
        })?;
        let place = |word: &str| words.iter().position(|&w| w == word);
        let spatial: Option<Dims> =
            (0..words.len().saturating_sub(2)).map(|i| place(&i.to_string())).collect();
        match (place(first), place(second), spatial) {
            (Some(a), Some(b), Some(spatial)) => Ok((a, b, spatial)),
            _ => Err(self.lexer.error(at, format!("the layout needs `{first}`, `{second}` and 0, 1, …"))),
        }
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

    /// `loc("x")` after anything; the name in it, if any.
    pub(super) fn location(&mut self) -> Result<String> {
        let mut name = String::new();
        if !self.eat_word("loc")? {
            return Ok(name);
        }
        let mut open = 0;
        loop {
            match &self.token {
                Token::Mark('(') => open += 1,
                Token::Mark(')') => open -= 1,
                Token::Str(s) if name.is_empty() => name = s.clone(),
                Token::End => return Err(self.unexpected("`)`")),
                _ => {}
            }
            self.advance()?;
            if open == 0 {
                return Ok(name);
            }
        }
    }
}

/// Elements as they stand in the text; the type comes after them.
enum Elements<'a> {
    None,
    Splat(&'a str),
    Bytes(String),
    List(Dims, Vec<&'a str>),
}

/// Arrays.
impl<'a> Parser<'a> {
    /// `dense<…> : tensor<…>`
    fn dense(&mut self) -> Result<Literal> {
        let at = self.at;
        self.advance()?;
        self.expect('<')?;
        let elements = match self.token.clone() {
            Token::Mark('>') => Elements::None,
            Token::Str(s) => {
                self.advance()?;
                Elements::Bytes(s)
            }
            Token::Mark('[') => {
                let (mut dims, mut words) = (Dims::new(), Vec::new());
                self.nested(0, &mut dims, &mut words)?;
                Elements::List(dims, words)
            }
            _ => Elements::Splat(self.element()?),
        };
        self.expect('>')?;
        self.expect(':')?;
        let ty = self.tensor_type()?;
        self.literal(ty, elements).map_err(|what| self.lexer.error(at, what))
    }

    fn element(&mut self) -> Result<&'a str> {
        match self.token {
            Token::Word(w @ ("true" | "false")) => {
                self.advance()?;
                Ok(w)
            }
            Token::Number(n) => {
                self.advance()?;
                Ok(n)
            }
            _ => Err(self.unexpected("an element")),
        }
    }

    /// `[[…], […]]`: all lists of one depth must have one length.
    fn nested(&mut self, depth: usize, dims: &mut Dims, words: &mut Vec<&'a str>) -> Result<()> {
        let at = self.at;
        if !self.is('[') {
            if dims.len() > depth {
                return Err(self.unexpected("a list"));
            }
            words.push(self.element()?);
            return Ok(());
        }
        let first_here = dims.len() == depth;
        if first_here {
            if depth == MAX_DEPTH || !words.is_empty() {
                return Err(self.error("lists of different depths or too deep"));
            }
            dims.push(0);
        }
        let n = self.list('[', ']', |p| p.nested(depth + 1, dims, words))?.len();
        if first_here {
            dims[depth] = n;
        }
        if dims[depth] == n { Ok(()) } else { Err(self.lexer.error(at, "lists of different lengths")) }
    }

    fn literal(&mut self, ty: TensorType, elements: Elements<'a>) -> Result<Literal, String> {
        let size = ty.dtype.size();
        let bits = |word: &str| parse_element(word, ty.dtype).map(|b| b.to_le_bytes()[..size].to_vec());
        let bytes = match elements {
            Elements::None if ty.elements() == 0 => Vec::new(),
            Elements::None => return Err(format!("no elements for {ty}")),
            Elements::Splat(word) => {
                self.splat_bytes = self.splat_bytes.saturating_add(ty.bytes());
                if self.splat_bytes > MAX_SPLAT_BYTES {
                    return Err(format!(
                        "arrays of one repeated value unfold to over {MAX_SPLAT_BYTES} bytes"
                    ));
                }
                bits(word)?.repeat(ty.elements())
            }
            Elements::Bytes(text) => {
                parse_hex(&text).ok_or("the string is not \"0x\" and pairs of hex digits")?
            }
            Elements::List(dims, words) => {
                if dims[..] != ty.shape[..] {
                    return Err(format!("the list has the shape {dims:?}, not that of {ty}"));
                }
                words.into_iter().map(bits).collect::<Result<Vec<_>, _>>()?.concat()
            }
        };
        Literal::from_bytes(ty, &bytes).map_err(|e| e.to_string())
    }
}
