//! Parses MLIR text (pretty or generic form, as JAX, PyTorch/XLA and MLIR print it) to an [`MlirModule`], and prints
//! the generic form. Malformed input is reported with line and column.

mod attribute;
mod operation;
mod pretty;
mod write;

use crate::syntax::{
    Attribute, FunctionValue, MlirModule, MlirRegion, MlirType, NamedAttributes, SourceSpan,
};
pub use attribute::unreduced_along;
pub use operation::function_of;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use systole_base::Result;
use systole_ir::text::Token;
use systole_ir::text::cursor::{TextReader, TokenCursor};
pub use write::write;

/// Parses an MLIR module, or functions without an enclosing module.
///
/// # Errors
/// `Data`: the syntax error with line and column.
pub fn parse(text: &str) -> Result<MlirModule> {
    MlirParser::new(text)?.module()
}

/// Parses an MLIR type: `tensor<2xf32>`.
///
/// # Errors
/// See [`parse`].
pub fn parse_type(text: &str) -> Result<MlirType> {
    let mut parser = MlirParser::new(text)?;
    let ty = parser.ty()?;
    parser.end_of(ty)
}

/// Parses an MLIR attribute: `dense<1> : tensor<2xi64>`.
///
/// # Errors
/// See [`parse`].
pub fn parse_attribute(text: &str) -> Result<Attribute> {
    let mut parser = MlirParser::new(text)?;
    let attribute = parser.attribute()?;
    parser.end_of(attribute)
}

/// Operands, attributes, regions and types of a parsed op.
#[derive(Default)]
struct ParsedOp {
    operands: Vec<FunctionValue>,
    attributes: NamedAttributes,
    regions: Vec<MlirRegion>,
    results: Vec<MlirType>,
}

/// Recursive-descent parser of MLIR text.
struct MlirParser<'a> {
    cursor: TokenCursor<'a>,
    /// Byte offsets of the lines.
    lines: Vec<usize>,
    /// Aliases (`#name = …`, `!name = …`); location aliases are skipped.
    aliases: HashMap<&'a str, Attribute>,
    /// Types of the values of the current function.
    values: Vec<MlirType>,
    /// Value names in scope, innermost last.
    scopes: Vec<HashMap<&'a str, Vec<FunctionValue>>>,
    /// Depth of nested dictionaries in value position.
    open: usize,
}

impl<'a> Deref for MlirParser<'a> {
    type Target = TokenCursor<'a>;
    fn deref(&self) -> &TokenCursor<'a> {
        &self.cursor
    }
}

impl DerefMut for MlirParser<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.cursor
    }
}

impl<'a> TextReader<'a> for MlirParser<'a> {
    fn cursor(&mut self) -> &mut TokenCursor<'a> {
        &mut self.cursor
    }
}

impl<'a> MlirParser<'a> {
    fn new(text: &'a str) -> Result<MlirParser<'a>> {
        let ends = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        let lines = std::iter::once(0).chain(ends).collect();
        let (aliases, values, scopes) = (HashMap::new(), Vec::new(), Vec::new());
        Ok(MlirParser { cursor: TokenCursor::new(text)?, lines, aliases, values, scopes, open: 0 })
    }

    /// Returns `read` if the text ends here.
    fn end_of<T>(&self, read: T) -> Result<T> {
        match self.token {
            Token::End => Ok(read),
            _ => Err(self.unexpected("the end")),
        }
    }

    /// Returns the position of byte `at`.
    fn place_of(&self, at: usize) -> SourceSpan {
        let line = self.lines.partition_point(|&begin| begin <= at);
        let begin = self.lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        SourceSpan { line, column: at - begin + 1 }
    }

    fn int(&mut self) -> Result<i128> {
        let Token::Number(digits) = self.token else { return Err(self.unexpected("an integer")) };
        let value = match digits.strip_prefix("0x") {
            Some(hex) => i128::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        };
        let value = value.ok_or_else(|| self.error(format!("invalid integer `{digits}`")))?;
        self.advance()?;
        Ok(value)
    }

    fn size(&mut self, most: usize) -> Result<usize> {
        let at = self.at;
        let n = self.int()?;
        let size = usize::try_from(n).ok().filter(|n| *n <= most);
        size.ok_or_else(|| self.error_at(at, format!("{n} is out of range: expected 0 to {most}")))
    }

    /// Defines new values of these types under a name.
    fn define(&mut self, name: &'a str, types: Vec<MlirType>) -> Result<Vec<FunctionValue>> {
        let first = self.values.len();
        let values: Vec<FunctionValue> = (first..first + types.len()).collect();
        self.values.extend(types);
        let Some(scope) = self.scopes.last_mut() else { return Err(self.error("value outside a function")) };
        if scope.insert(name, values.clone()).is_some() {
            return Err(self.error(format!("`%{name}` is defined twice")));
        }
        Ok(values)
    }

    /// Parses `%0` or `%0#1`
    fn value(&mut self) -> Result<FunctionValue> {
        let Token::Value(name) = self.token else { return Err(self.unexpected("a value")) };
        let at = self.at;
        self.advance()?;
        let mut part = 0;
        if let Token::Part(digits) = self.token {
            part = digits.parse().map_err(|_| self.error("result number too large"))?;
            self.advance()?;
        }
        let known = self.scopes.iter().rev().find_map(|names| names.get(name));
        let found = known.and_then(|values| values.get(part)).copied();
        found.ok_or_else(|| self.error_at(at, format!("`%{name}` has no result {part} here")))
    }
}
