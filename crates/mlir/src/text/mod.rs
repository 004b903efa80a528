//! Text → [`Module`]: pretty and generic, as JAX, PyTorch/XLA and MLIR's printer write it. Hostile text ends in an error
//! with its line and column.

mod attribute;
mod lex;
mod operation;
mod pretty;

use crate::syntax::{Attribute, Attributes, Module, Type, Value};
use lex::{Lexer, Token};
use std::collections::HashMap;
use systole_base::{Error, Result};

/// Regions, lists and types nested deeper are refused.
const MAX_DEPTH: usize = 64;

/// Reads a module, or functions without one around them.
///
/// # Errors
/// `Data`: what is wrong, at which line and column.
pub fn parse(text: &str) -> Result<Module> {
    let mut lexer = Lexer::new(text);
    let (token, at) = lexer.next()?;
    let aliases = HashMap::new();
    Parser { lexer, token, at, depth: 0, aliases, values: Vec::new(), scopes: Vec::new() }.module()
}

/// What reads a text.
struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The current token, and where it starts.
    token: Token<'a>,
    at: usize,
    depth: usize,
    /// `#name = …` and `!name = …`; locations are left out.
    aliases: HashMap<&'a str, Attribute>,
    /// Types of the values of the function that is being read.
    values: Vec<Type>,
    /// Names that are known here, innermost last.
    scopes: Vec<HashMap<&'a str, Vec<Value>>>,
}

impl<'a> Parser<'a> {
    fn error(&self, what: impl Into<String>) -> Error {
        self.lexer.error(self.at, what)
    }

    fn unexpected(&self, wanted: &str) -> Error {
        self.error(format!("expected {wanted}, found {}", self.token.show()))
    }

    fn advance(&mut self) -> Result<Token<'a>> {
        let (token, at) = self.lexer.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn is(&self, mark: char) -> bool {
        self.token == Token::Mark(mark)
    }

    fn is_word(&self, word: &str) -> bool {
        self.token == Token::Word(word)
    }

    fn eat(&mut self, mark: char) -> Result<bool> {
        let found = self.is(mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, mark: char) -> Result<()> {
        if self.eat(mark)? { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    fn eat_word(&mut self, word: &str) -> Result<bool> {
        let found = self.is_word(word);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word)? { Ok(()) } else { Err(self.unexpected(&format!("`{word}`"))) }
    }

    fn expect_arrow(&mut self) -> Result<()> {
        if self.token != Token::Arrow {
            return Err(self.unexpected("`->`"));
        }
        self.advance().map(drop)
    }

    fn word(&mut self) -> Result<&'a str> {
        match self.token {
            Token::Word(w) => {
                self.advance()?;
                Ok(w)
            }
            _ => Err(self.unexpected("a word")),
        }
    }

    fn symbol(&mut self) -> Result<String> {
        match self.advance()? {
            Token::Symbol(name) => Ok(name),
            other => Err(self.error(format!("expected a name after `@`, found {}", other.show()))),
        }
    }

    fn string(&mut self) -> Result<String> {
        match self.advance()? {
            Token::Str(text) => Ok(text),
            other => Err(self.error(format!("expected a string, found {}", other.show()))),
        }
    }

    fn int(&mut self) -> Result<i128> {
        let Token::Number(digits) = self.token else { return Err(self.unexpected("a whole number")) };
        let value = match digits.strip_prefix("0x") {
            Some(hex) => i128::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        };
        let value = value.ok_or_else(|| self.error(format!("`{digits}` is no whole number")))?;
        self.advance()?;
        Ok(value)
    }

    fn size(&mut self, most: usize) -> Result<usize> {
        let at = self.at;
        let n = self.int()?;
        let size = usize::try_from(n).ok().filter(|n| *n <= most);
        size.ok_or_else(|| self.lexer.error(at, format!("{n} is not between 0 and {most}")))
    }

    /// Runs `f` one level deeper.
    fn deeper<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH}")));
        }
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        result
    }

    /// `open item, item, … close`
    fn list<T>(
        &mut self,
        open: char,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.expect(open)?;
        let mut items = Vec::new();
        if self.eat(close)? {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if !self.eat(',')? {
                self.expect(close)?;
                return Ok(items);
            }
        }
    }

    /// Items separated by commas, at least one.
    fn separated<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.eat(',')? {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// A new value of a type, known by a name.
    fn define(&mut self, name: &'a str, types: Vec<Type>) -> Result<Vec<Value>> {
        let first = self.values.len();
        let values: Vec<Value> = (first..first + types.len()).collect();
        self.values.extend(types);
        let Some(scope) = self.scopes.last_mut() else {
            return Err(self.error("a value outside of a function"));
        };
        if scope.insert(name, values.clone()).is_some() {
            return Err(self.error(format!("`%{name}` is defined twice")));
        }
        Ok(values)
    }

    /// `%0` or `%0#1`
    fn value(&mut self) -> Result<Value> {
        let Token::Value(name) = self.token else { return Err(self.unexpected("a value")) };
        let at = self.at;
        self.advance()?;
        let mut part = 0;
        if let Token::Part(digits) = self.token {
            part = digits.parse().map_err(|_| self.error("a result number that is too large"))?;
            self.advance()?;
        }
        let known = self.scopes.iter().rev().find_map(|names| names.get(name));
        let found = known.and_then(|values| values.get(part)).copied();
        found.ok_or_else(|| self.lexer.error(at, format!("`%{name}` has no value {part} here")))
    }
}

/// The attribute of a name.
pub(crate) fn find<'b>(attributes: &'b Attributes, name: &str) -> Option<&'b Attribute> {
    attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value)
}
