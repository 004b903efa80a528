//! Token cursor for parsers of MLIR text: current token, expected tokens, lists and nesting limits.

use super::lexer::{Lexer, Token};
use crate::ensure;
use std::collections::HashSet;
use systole_base::{Error, Result};

/// Maximum nesting of regions, lists and types; below the interpreter's own limit.
pub const MAX_DEPTH: usize = 32;
/// Maximum total bytes of all splat constants (`dense<0.0>`) in one text.
const MAX_SPLAT_BYTES: usize = 1 << 28;

/// Token cursor of a parser: the current token and its offset.
pub struct TokenCursor<'a> {
    lexer: Lexer<'a>,
    /// Current token.
    pub token: Token<'a>,
    /// Byte offset of the current token.
    pub at: usize,
    depth: usize,
    splat_bytes: usize,
}

impl<'a> TokenCursor<'a> {
    /// Creates a cursor at the first token of a text.
    ///
    /// # Errors
    /// If the text starts with an invalid token.
    pub fn new(text: &'a str) -> Result<TokenCursor<'a>> {
        let mut lexer = Lexer::new(text);
        let (token, at) = lexer.next()?;
        Ok(TokenCursor { lexer, token, at, depth: 0, splat_bytes: 0 })
    }

    /// Creates an error at byte `at`, reported as line and column.
    pub fn error_at(&self, at: usize, what: impl Into<String>) -> Error {
        self.lexer.error(at, what)
    }

    /// Creates an error at the current token.
    pub fn error(&self, what: impl Into<String>) -> Error {
        self.error_at(self.at, what)
    }

    /// Creates an error: expected `wanted`, found the current token.
    pub fn unexpected(&self, wanted: &str) -> Error {
        self.error(format!("expected {wanted}, found {}", self.token.show()))
    }

    /// Advances to the next token; returns the previous one.
    pub fn advance(&mut self) -> Result<Token<'a>> {
        let (token, at) = self.lexer.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    /// Whether the current token is this punctuation mark.
    pub fn is(&self, mark: char) -> bool {
        self.token == Token::Mark(mark)
    }

    /// Consumes this punctuation mark if it is the current token.
    pub fn eat(&mut self, mark: char) -> Result<bool> {
        self.eat_token(&Token::Mark(mark))
    }

    /// Consumes this word if it is the current token.
    pub fn eat_word(&mut self, word: &str) -> Result<bool> {
        self.eat_token(&Token::Word(word))
    }

    fn eat_token(&mut self, token: &Token<'_>) -> Result<bool> {
        let found = self.token == *token;
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    /// Consumes this punctuation mark, or returns an error.
    pub fn expect(&mut self, mark: char) -> Result<()> {
        if self.eat(mark)? { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    /// Consumes this word, or returns an error.
    pub fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word)? { Ok(()) } else { Err(self.unexpected(&format!("`{word}`"))) }
    }

    /// Consumes `->`, or returns an error.
    pub fn expect_arrow(&mut self) -> Result<()> {
        if self.eat_token(&Token::Arrow)? { Ok(()) } else { Err(self.unexpected("`->`")) }
    }

    /// Parses a word token.
    pub fn word(&mut self) -> Result<&'a str> {
        let Token::Word(word) = self.token else { return Err(self.unexpected("a word")) };
        self.advance()?;
        Ok(word)
    }

    /// Parses a symbol token: `@name`.
    pub fn symbol(&mut self) -> Result<String> {
        match self.advance()? {
            Token::Symbol(name) => Ok(name),
            other => Err(self.error(format!("expected a name after `@`, found {}", other.show()))),
        }
    }

    /// Parses a string token: `"text"`.
    pub fn string(&mut self) -> Result<String> {
        match self.advance()? {
            Token::Str(text) => Ok(text),
            other => Err(self.error(format!("expected a string, found {}", other.show()))),
        }
    }

    /// Returns the raw text up to the `>` that closes the current `<`, because types are not tokenized like words.
    pub fn angles(&mut self) -> Result<&'a str> {
        ensure!(self.is('<'), self.unexpected("`<`"));
        let inner = self.lexer.until_close()?;
        self.advance()?;
        Ok(inner)
    }

    /// Counts the bytes of a splat constant against the parser's limit, since short text can request large arrays.
    pub fn unfold(&mut self, bytes: usize) -> Result<(), String> {
        self.splat_bytes = self.splat_bytes.saturating_add(bytes);
        match self.splat_bytes <= MAX_SPLAT_BYTES {
            true => Ok(()),
            false => Err(format!("splat constants expand to more than {MAX_SPLAT_BYTES} bytes")),
        }
    }

    /// Parses an optional `loc("x")`; returns the name in it, if any.
    pub fn location(&mut self) -> Result<String> {
        let (mut name, mut told) = (String::new(), false);
        if !self.eat_word("loc")? {
            return Ok(name);
        }
        let mut open = 0;
        loop {
            match &self.token {
                Token::Mark('(') => open += 1,
                Token::Mark(')') => open -= 1,
                Token::Str(s) if name.is_empty() && open == 1 && !told => name = s.clone(),
                // A file name with line and column is not a value name.
                Token::Mark(':') if open == 1 && !told => {
                    name.clear();
                    told = true;
                }
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

/// Helpers for parsers of nested structures, on top of a [`TokenCursor`].
pub trait TextReader<'a>: Sized {
    /// The cursor of this parser.
    fn cursor(&mut self) -> &mut TokenCursor<'a>;

    /// Runs `f` one nesting level deeper; returns an error beyond the maximum depth.
    fn deeper<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.cursor().depth == MAX_DEPTH {
            return Err(self.cursor().error(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.cursor().depth += 1;
        let result = f(self);
        self.cursor().depth -= 1;
        result
    }

    /// Parses `item, item, …`, at least one.
    fn separated<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.cursor().eat(',')? {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Parses `open item, item, … close`.
    fn list<T>(
        &mut self,
        open: char,
        close: char,
        item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.cursor().expect(open)?;
        if self.cursor().eat(close)? {
            return Ok(Vec::new());
        }
        let items = self.separated(item)?;
        self.cursor().expect(close)?;
        Ok(items)
    }

    /// Parses `{name = value, flag, …}`; `flag` is the value of a name without one.
    fn entries<T>(
        &mut self,
        flag: impl Fn() -> T,
        mut value: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<(String, T)>> {
        let mut names = HashSet::new();
        self.list('{', '}', |p| {
            let at = p.cursor().at;
            let name = match p.cursor().advance()? {
                Token::Word(w) => w.to_string(),
                Token::Str(s) => s,
                other => {
                    let what = format!("expected an attribute, found {}", other.show());
                    return Err(p.cursor().error_at(at, what));
                }
            };
            if !names.insert(name.clone()) {
                return Err(p.cursor().error_at(at, format!("duplicate attribute `{name}`")));
            }
            let value = if p.cursor().eat('=')? { value(p)? } else { flag() };
            Ok((name, value))
        })
    }

    /// Parses convolution layouts: `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`.
    fn layouts(&mut self) -> Result<[Vec<String>; 3]> {
        let layout = |c: &mut TokenCursor<'a>| {
            c.list('[', ']', |p| match p.advance()? {
                Token::Word(w) | Token::Number(w) => Ok(w.to_string()),
                _ => Err(p.unexpected("a letter or number")),
            })
        };
        let input = layout(self.cursor())?;
        self.cursor().expect_word("x")?;
        let kernel = layout(self.cursor())?;
        self.cursor().expect_arrow()?;
        Ok([input, kernel, layout(self.cursor())?])
    }
}

impl<'a> TextReader<'a> for TokenCursor<'a> {
    fn cursor(&mut self) -> &mut TokenCursor<'a> {
        self
    }
}

#[doc(hidden)]
pub use self::{TextReader as Reader, TokenCursor as Cursor};
