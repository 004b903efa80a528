//! Text → tokens, one at a time, each with its place.

use crate::syntax::Place;
use systole_base::{Error, ErrorKind, Result};

/// One token of MLIR text. Names are without their sigil.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// `module`, `stablehlo.add`, `true`
    Word(&'a str),
    /// `%arg0`
    Value(&'a str),
    /// `#1` after a value.
    Part(&'a str),
    /// `@main`
    Symbol(String),
    /// `^bb0`
    Block(&'a str),
    /// `#stablehlo.gather`, `#loc1`
    Hash(&'a str),
    /// `!stablehlo.token`
    Bang(&'a str),
    /// `12`, `-1.5e3`, `0x7F`
    Number(&'a str),
    /// `"text"`
    Str(String),
    /// `->`
    Arrow,
    /// One of `( ) { } [ ] < > , : = ? * + / - |`
    Mark(char),
    /// The end.
    End,
}

impl Token<'_> {
    /// For messages.
    pub(super) fn show(&self) -> String {
        match self {
            Token::Word(s) | Token::Number(s) => format!("`{s}`"),
            Token::Value(s) => format!("`%{s}`"),
            Token::Part(s) | Token::Hash(s) => format!("`#{s}`"),
            Token::Bang(s) => format!("`!{s}`"),
            Token::Symbol(s) => format!("`@{s}`"),
            Token::Block(s) => format!("`^{s}`"),
            Token::Str(s) => format!("the string \"{}\"", s.chars().take(40).collect::<String>()),
            Token::Arrow => "`->`".into(),
            Token::Mark(c) => format!("`{c}`"),
            Token::End => "the end of the text".into(),
        }
    }
}

/// Reads tokens from a text.
pub(super) struct Lexer<'a> {
    text: &'a str,
    pos: usize,
    /// Where the lines begin.
    lines: Vec<usize>,
}

fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'$')
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        let ends = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        Lexer { text, pos: 0, lines: std::iter::once(0).chain(ends).collect() }
    }

    /// Line and column of byte `at`.
    pub(super) fn place(&self, at: usize) -> Place {
        let line = self.lines.partition_point(|&begin| begin <= at);
        Place { line, column: at - self.lines.get(line.saturating_sub(1)).copied().unwrap_or(0) + 1 }
    }

    pub(super) fn error(&self, at: usize, what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Data, format!("cannot read the StableHLO text: {}", what.into()))
            .at(self.place(at.min(self.text.len())).to_string())
    }

    fn peek_byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.pos).copied()
    }

    fn skip_space(&mut self) {
        let bytes = self.text.as_bytes();
        while let Some(&b) = bytes.get(self.pos) {
            if b.is_ascii_whitespace() {
                self.pos += 1;
            } else if bytes[self.pos..].starts_with(b"//") {
                self.run(|b| b != b'\n');
            } else {
                break;
            }
        }
    }

    /// The longest run of bytes that `accept`.
    fn run(&mut self, accept: impl Fn(u8) -> bool) -> &'a str {
        let start = self.pos;
        while self.peek_byte().is_some_and(&accept) {
            self.pos += 1;
        }
        self.text.get(start..self.pos).unwrap_or_default()
    }

    /// The next token and where it starts.
    pub(super) fn next(&mut self) -> Result<(Token<'a>, usize)> {
        self.skip_space();
        let at = self.pos;
        let Some(b) = self.peek_byte() else { return Ok((Token::End, at)) };
        let next = self.text.as_bytes().get(at + 1).copied().unwrap_or(0);
        let token = match b {
            b'-' if next == b'>' => {
                self.pos += 2;
                Token::Arrow
            }
            b'-' if next.is_ascii_digit() => Token::Number(self.number()),
            b'(' | b')' | b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b',' | b':' | b'=' | b'?' | b'*'
            | b'+' | b'/' | b'-' | b'|' => {
                self.pos += 1;
                Token::Mark(b as char)
            }
            b'%' => {
                self.pos += 1;
                Token::Value(self.run(|b| is_name(b) || b == b'-'))
            }
            b'^' => Token::Block(self.sigil()),
            b'!' => Token::Bang(self.sigil()),
            b'#' if next.is_ascii_digit() => Token::Part(self.sigil()),
            b'#' => Token::Hash(self.sigil()),
            b'@' if next == b'"' => {
                self.pos += 1;
                Token::Symbol(self.string(at)?)
            }
            b'@' => Token::Symbol(self.sigil().to_string()),
            b'"' => Token::Str(self.string(at)?),
            b'0'..=b'9' => Token::Number(self.number()),
            b if b.is_ascii_alphabetic() || b == b'_' => Token::Word(self.run(is_name)),
            _ => {
                let c = self.text.get(at..).and_then(|rest| rest.chars().next()).unwrap_or(' ');
                return Err(self.error(at, format!("`{}` has no meaning here", c.escape_default())));
            }
        };
        Ok((token, at))
    }

    fn sigil(&mut self) -> &'a str {
        self.pos += 1;
        self.run(is_name)
    }

    fn number(&mut self) -> &'a str {
        let start = self.pos;
        self.pos += 1;
        if self.text.get(start..).is_some_and(|rest| rest.starts_with("0x")) {
            self.pos += 1;
            self.run(|b| b.is_ascii_hexdigit());
            return self.text.get(start..self.pos).unwrap_or_default();
        }
        self.run(|b| b.is_ascii_digit() || b == b'.');
        let exponent = self.text.as_bytes().get(self.pos..).unwrap_or_default();
        let digit = |i: usize| exponent.get(i).is_some_and(u8::is_ascii_digit);
        let signed = matches!(exponent.get(1), Some(b'+' | b'-')) && digit(2);
        if matches!(exponent.first(), Some(b'e' | b'E')) && (signed || digit(1)) {
            self.pos += if signed { 2 } else { 1 };
            self.run(|b| b.is_ascii_digit());
        }
        self.text.get(start..self.pos).unwrap_or_default()
    }

    fn string(&mut self, at: usize) -> Result<String> {
        self.pos += 1;
        let mut bytes: Vec<u8> = Vec::new();
        loop {
            let plain = self.run(|b| !matches!(b, b'"' | b'\\' | b'\n'));
            bytes.extend(plain.as_bytes());
            match self.peek_byte() {
                Some(b'"') => {
                    self.pos += 1;
                    return Ok(String::from_utf8_lossy(&bytes).into_owned());
                }
                Some(b'\\') => bytes.push(self.escape()?),
                _ => return Err(self.error(at, "a string without end")),
            }
        }
    }

    fn escape(&mut self) -> Result<u8> {
        let at = self.pos;
        let rest = self.text.as_bytes().get(at + 1..).unwrap_or_default();
        let hex = |i: usize| rest.get(i).and_then(|&b| (b as char).to_digit(16));
        let (byte, length) = match (rest.first(), hex(0), hex(1)) {
            (Some(b'n'), ..) => (b'\n', 2),
            (Some(b't'), ..) => (b'\t', 2),
            (Some(&b @ (b'"' | b'\\')), ..) => (b, 2),
            (_, Some(high), Some(low)) => ((high * 16 + low) as u8, 3),
            _ => return Err(self.error(at, "an escape in a string that MLIR does not have")),
        };
        self.pos += length;
        Ok(byte)
    }

    /// The raw text up to the `>` that closes what is open, which is consumed. Arrows close nothing.
    pub(super) fn until_close(&mut self) -> Result<&'a str> {
        let (start, mut open) = (self.pos, 1);
        while let Some(b) = self.peek_byte() {
            let is_arrow = b == b'>' && self.pos > start && self.text.as_bytes()[self.pos - 1] == b'-';
            match b {
                b'<' => open += 1,
                b'>' if !is_arrow => open -= 1,
                b'"' => {
                    self.string(self.pos)?;
                    continue;
                }
                _ => {}
            }
            self.pos += 1;
            if open == 0 {
                return Ok(self.text.get(start..self.pos - 1).unwrap_or_default());
            }
        }
        Err(self.error(start, "a `<` without its `>`"))
    }
}
