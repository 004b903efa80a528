//! Lexer for MLIR text: produces one token at a time, with its position.

use systole_base::{Error, Result, err};

/// A token of MLIR text. Names are stored without their sigil.
#[derive(Clone, Debug, PartialEq)]
pub enum Token<'a> {
    /// `module`, `stablehlo.add`, `true`
    Word(&'a str),
    /// `%arg0`, `%3`; a result number `#1` follows as [`Token::Part`].
    Value(&'a str),
    /// `#1` after a value.
    Part(&'a str),
    /// `@main`
    Symbol(String),
    /// `^bb0`
    Block(&'a str),
    /// `#stablehlo.gather`, `#loc1`
    Attr(&'a str),
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
    /// End of the text.
    End,
}

impl Token<'_> {
    /// Formats the token for error messages.
    pub fn show(&self) -> String {
        match self {
            Token::Word(s) | Token::Number(s) => format!("`{s}`"),
            Token::Value(s) => format!("`%{s}`"),
            Token::Part(s) | Token::Attr(s) => format!("`#{s}`"),
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

/// Splits text into tokens.
pub(super) struct Lexer<'a> {
    text: &'a str,
    pos: usize,
}

fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'$')
}

impl<'a> Lexer<'a> {
    /// Creates a lexer at the start of the text.
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, pos: 0 }
    }

    /// Creates an error at byte `at`, reported as line and column.
    pub(super) fn error(&self, at: usize, what: impl Into<String>) -> Error {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|&&b| b != b'\n').count() + 1;
        err!(Data, "cannot read the StableHLO text: {}", what.into()).at(format!("line {line}:{column}"))
    }

    fn peek_byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.pos).copied()
    }

    fn skip_space(&mut self) {
        loop {
            self.run(|b| b.is_ascii_whitespace());
            if !self.text.as_bytes()[self.pos..].starts_with(b"//") {
                return;
            }
            self.run(|b| b != b'\n');
        }
    }

    /// Reads the longest run of bytes for which `accept` holds.
    fn run(&mut self, accept: impl Fn(u8) -> bool) -> &'a str {
        let start = self.pos;
        while self.peek_byte().is_some_and(&accept) {
            self.pos += 1;
        }
        self.text.get(start..self.pos).unwrap_or_default()
    }

    /// Returns the next token and its start offset.
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
            b'#' => Token::Attr(self.sigil()),
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
                return Err(self.error(at, format!("unexpected character `{}`", c.escape_default())));
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
        if matches!(self.peek_byte(), Some(b'e' | b'E')) {
            self.pos += 1;
            if matches!(self.peek_byte(), Some(b'+' | b'-')) {
                self.pos += 1;
            }
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
                    let text = String::from_utf8(bytes);
                    return text.map_err(|_| self.error(at, "string is not valid UTF-8"));
                }
                Some(b'\\') => bytes.push(self.escape()?),
                _ => return Err(self.error(at, "unterminated string")),
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
            _ => return Err(self.error(at, "unknown escape sequence in a string")),
        };
        self.pos += length;
        Ok(byte)
    }

    /// Reads raw text up to the `>` that closes the open `<`, and consumes it. The `>` of an arrow `->` is skipped.
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
        Err(self.error(start, "`<` without matching `>`"))
    }
}
