//! What readers of MLIR text share: the current token, what is taken of it, and lists.

use super::lexer::{Lexer, Token};
use std::collections::HashSet;
use systole_base::{Error, Result};

/// Regions, lists and types nested deeper are refused. Below the interpreter's own limit.
pub const MAX_DEPTH: usize = 32;
/// Bytes that all `dense<0.0>` of one text may unfold to.
const MAX_SPLAT_BYTES: usize = 1 << 28;

/// The current token of a text.
pub struct TokenCursor<'a> {
    lexer: Lexer<'a>,
    /// The token.
    pub token: Token<'a>,
    /// The byte where it starts.
    pub at: usize,
    depth: usize,
    splat_bytes: usize,
}

impl<'a> TokenCursor<'a> {
    /// At the first token of a text.
    ///
    /// # Errors
    /// When the text begins with what is no token.
    pub fn new(text: &'a str) -> Result<TokenCursor<'a>> {
        let mut lexer = Lexer::new(text);
        let (token, at) = lexer.next()?;
        Ok(TokenCursor { lexer, token, at, depth: 0, splat_bytes: 0 })
    }

    /// An error at byte `at`, told as line and column.
    pub fn error_at(&self, at: usize, what: impl Into<String>) -> Error {
        self.lexer.error(at, what)
    }

    /// An error at the current token.
    pub fn error(&self, what: impl Into<String>) -> Error {
        self.error_at(self.at, what)
    }

    /// The error that something else was expected here.
    pub fn unexpected(&self, wanted: &str) -> Error {
        self.error(format!("expected {wanted}, found {}", self.token.show()))
    }

    /// Goes on to the next token; gives the one that was.
    pub fn advance(&mut self) -> Result<Token<'a>> {
        let (token, at) = self.lexer.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    /// Whether this mark stands here.
    pub fn is(&self, mark: char) -> bool {
        self.token == Token::Mark(mark)
    }

    /// Takes this mark, where it stands here.
    pub fn eat(&mut self, mark: char) -> Result<bool> {
        self.eat_token(&Token::Mark(mark))
    }

    /// Takes this word, where it stands here.
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

    /// Takes this mark, which must stand here.
    pub fn expect(&mut self, mark: char) -> Result<()> {
        if self.eat(mark)? { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    /// Takes this word, which must stand here.
    pub fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word)? { Ok(()) } else { Err(self.unexpected(&format!("`{word}`"))) }
    }

    /// Takes `->`, which must stand here.
    pub fn expect_arrow(&mut self) -> Result<()> {
        if self.eat_token(&Token::Arrow)? { Ok(()) } else { Err(self.unexpected("`->`")) }
    }

    /// A word.
    pub fn word(&mut self) -> Result<&'a str> {
        let Token::Word(word) = self.token else { return Err(self.unexpected("a word")) };
        self.advance()?;
        Ok(word)
    }

    /// `@name`
    pub fn symbol(&mut self) -> Result<String> {
        match self.advance()? {
            Token::Symbol(name) => Ok(name),
            other => Err(self.error(format!("expected a name after `@`, found {}", other.show()))),
        }
    }

    /// `"text"`
    pub fn string(&mut self) -> Result<String> {
        match self.advance()? {
            Token::Str(text) => Ok(text),
            other => Err(self.error(format!("expected a string, found {}", other.show()))),
        }
    }

    /// The raw text up to the `>` that closes the current `<`: types do not follow the rules of words.
    pub fn angles(&mut self) -> Result<&'a str> {
        if !self.is('<') {
            return Err(self.unexpected("`<`"));
        }
        let inner = self.lexer.until_close()?;
        self.advance()?;
        Ok(inner)
    }

    /// Counts the bytes of an array of one repeated value, which no text of that size is needed to ask for.
    pub fn unfold(&mut self, bytes: usize) -> Result<(), String> {
        self.splat_bytes = self.splat_bytes.saturating_add(bytes);
        match self.splat_bytes <= MAX_SPLAT_BYTES {
            true => Ok(()),
            false => Err(format!("arrays of one repeated value unfold to over {MAX_SPLAT_BYTES} bytes")),
        }
    }

    /// `loc("x")` after anything; the name in it, if any.
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
                // A file's name, with line and column, names no value.
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

/// What readers do with parts that they read themselves.
pub trait TextReader<'a>: Sized {
    /// The text that is read.
    fn cursor(&mut self) -> &mut TokenCursor<'a>;

    /// Runs `f` one level deeper: regions, lists and types nested deeper than that are refused.
    fn deeper<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.cursor().depth == MAX_DEPTH {
            return Err(self.cursor().error(format!("nested deeper than {MAX_DEPTH}")));
        }
        self.cursor().depth += 1;
        let result = f(self);
        self.cursor().depth -= 1;
        result
    }

    /// `item, item, …`, at least one.
    fn separated<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.cursor().eat(',')? {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// `open item, item, … close`
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

    /// `{name = value, flag, …}`; `flag`: what a name without a value stands for.
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
                return Err(p.cursor().error_at(at, format!("the attribute `{name}` is given twice")));
            }
            let value = if p.cursor().eat('=')? { value(p)? } else { flag() };
            Ok((name, value))
        })
    }

    /// `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`
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
