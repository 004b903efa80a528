//! Text → tokens, one at a time, each with its place.

use systole_base::{Error, ErrorKind, Result};

/// One token of MLIR text. Names are without their sigil.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A word: `module`, `func.func`, `tensor`, `true`.
    Word(&'a str),
    /// `%arg0`, `%3`; a result number follows as `#1` in [`Token::Part`].
    Value(&'a str),
    /// `#1` after a value.
    Part(&'a str),
    /// `@main`
    Symbol(String),
    /// `^bb0`
    Block(&'a str),
    /// `#stablehlo.gather`
    Attr(&'a str),
    /// `12`, `-1.5e3`, `0x7F`
    Number(&'a str),
    /// `"text"`
    Str(String),
    /// `->`
    Arrow,
    /// One of `( ) { } [ ] < > , : =`
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
            Token::Part(s) | Token::Attr(s) => format!("`#{s}`"),
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
}

fn is_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'$')
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, pos: 0 }
    }

    /// An error at byte `at`, told as line and column.
    pub(super) fn error(&self, at: usize, what: impl Into<String>) -> Error {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|&&b| b != b'\n').count() + 1;
        Error::new(ErrorKind::Data, format!("cannot read the StableHLO text: {}", what.into()))
            .at(format!("line {line}:{column}"))
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
                while bytes.get(self.pos).is_some_and(|&b| b != b'\n') {
                    self.pos += 1;
                }
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
        &self.text[start..self.pos]
    }

    /// The next token and where it starts.
    pub(super) fn next(&mut self) -> Result<(Token<'a>, usize)> {
        self.skip_space();
        let at = self.pos;
        let Some(b) = self.peek_byte() else { return Ok((Token::End, at)) };
        let rest = &self.text.as_bytes()[at..];
        let token = match b {
            _ if rest.starts_with(b"->") => {
                self.pos += 2;
                Token::Arrow
            }
            b'(' | b')' | b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b',' | b':' | b'=' => {
                self.pos += 1;
                Token::Mark(b as char)
            }
            b'%' => Token::Value(self.sigil()),
            b'^' => Token::Block(self.sigil()),
            b'#' if rest.get(1).is_some_and(u8::is_ascii_digit) => Token::Part(self.sigil()),
            b'#' => Token::Attr(self.sigil()),
            b'@' if rest.get(1) == Some(&b'"') => {
                self.pos += 1;
                Token::Symbol(self.string(at)?)
            }
            b'@' => Token::Symbol(self.sigil().to_string()),
            b'"' => Token::Str(self.string(at)?),
            b'-' | b'0'..=b'9' => Token::Number(self.number()),
            b if b.is_ascii_alphabetic() || b == b'_' => Token::Word(self.run(is_name)),
            _ => {
                let c = self.text[at..].chars().next().unwrap_or(' ');
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
        if self.text[start..].starts_with("0x") {
            self.pos += 1;
            self.run(|b| b.is_ascii_hexdigit());
            return &self.text[start..self.pos];
        }
        self.run(|b| b.is_ascii_digit() || b == b'.');
        if matches!(self.peek_byte(), Some(b'e' | b'E')) {
            self.pos += 1;
            if matches!(self.peek_byte(), Some(b'+' | b'-')) {
                self.pos += 1;
            }
            self.run(|b| b.is_ascii_digit());
        }
        &self.text[start..self.pos]
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
                    return text.map_err(|_| self.error(at, "a string that is not UTF-8"));
                }
                Some(b'\\') => bytes.push(self.escape()?),
                _ => return Err(self.error(at, "a string without end")),
            }
        }
    }

    fn escape(&mut self) -> Result<u8> {
        let at = self.pos;
        let rest = &self.text.as_bytes()[at + 1..];
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

    /// The raw text up to the next `>`, which is consumed: tensor types do not follow the rules of words.
    pub(super) fn until_close(&mut self) -> Result<&'a str> {
        let start = self.pos;
        let inner = self.run(|b| b != b'>' && b != b'\n');
        if self.peek_byte() != Some(b'>') {
            return Err(self.error(start, "a type without end"));
        }
        self.pos += 1;
        Ok(inner)
    }
}
