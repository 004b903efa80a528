//! [`IteratorState`]: where a running pipeline stands, as a small tree of integers; [`PipelinePosition`]: where a whole run does.
//!
//! A state holds no elements: what a stage had buffered is read again from the state of the stage above. It is
//! text to the outside (`epoch:taken@1.7(12)`), so that a checkpoint of any format can hold it.

use std::fmt;
use std::str::FromStr;
use systole_base::{Error, ErrorKind, Result};

/// Deeper trees are not made by any pipeline and are refused when they are read.
const MAX_DEPTH: usize = 64;

/// Where a cursor stands: its own numbers, and the states of the stages above it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IteratorState {
    /// What the stage itself counts.
    pub numbers: Vec<u64>,
    /// The stages above, in the stage's own order.
    pub inner: Vec<IteratorState>,
}

impl IteratorState {
    /// The state of a source: only numbers.
    pub fn at(numbers: impl Into<Vec<u64>>) -> IteratorState {
        IteratorState { numbers: numbers.into(), inner: Vec::new() }
    }

    /// The same with the state of one more stage above.
    pub fn over(mut self, inner: IteratorState) -> IteratorState {
        self.inner.push(inner);
        self
    }

    /// Number `i`. Errors when the state was taken from another pipeline.
    pub fn number(&self, i: usize) -> Result<u64> {
        self.numbers.get(i).copied().ok_or_else(foreign)
    }

    /// The state of the stage `i` above. Errors when the state was taken from another pipeline.
    pub fn above(&self, i: usize) -> Result<&IteratorState> {
        self.inner.get(i).ok_or_else(foreign)
    }

    /// Numbers in the whole tree: what it costs to keep.
    pub fn size(&self) -> usize {
        1 + self.numbers.len() + self.inner.iter().map(IteratorState::size).sum::<usize>()
    }
}

/// The error of a state that does not fit.
pub(crate) fn foreign() -> Error {
    Error::new(ErrorKind::Data, "this data position belongs to another pipeline")
        .hint("resume with the pipeline and the data that the position was taken from")
}

impl fmt::Display for IteratorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, n) in self.numbers.iter().enumerate() {
            write!(f, "{}{n}", if i == 0 { "" } else { "." })?;
        }
        if self.inner.is_empty() {
            return Ok(());
        }
        for (i, state) in self.inner.iter().enumerate() {
            write!(f, "{}{state}", if i == 0 { "(" } else { "," })?;
        }
        f.write_str(")")
    }
}

impl FromStr for IteratorState {
    type Err = Error;
    fn from_str(text: &str) -> Result<IteratorState> {
        let mut parser = PositionParser { rest: text.as_bytes() };
        parser.state(0).filter(|_| parser.rest.is_empty()).ok_or_else(|| unreadable(text))
    }
}

struct PositionParser<'a> {
    rest: &'a [u8],
}

impl PositionParser<'_> {
    fn eat(&mut self, byte: u8) -> bool {
        let found = self.rest.first() == Some(&byte);
        self.rest = &self.rest[found as usize..];
        found
    }

    fn state(&mut self, depth: usize) -> Option<IteratorState> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut state = IteratorState::default();
        if self.rest.first().is_some_and(u8::is_ascii_digit) {
            state.numbers.push(self.number()?);
            while self.eat(b'.') {
                state.numbers.push(self.number()?);
            }
        }
        if self.eat(b'(') {
            state.inner.push(self.state(depth + 1)?);
            while self.eat(b',') {
                state.inner.push(self.state(depth + 1)?);
            }
            self.eat(b')').then_some(())?;
        }
        Some(state)
    }

    fn number(&mut self) -> Option<u64> {
        let end = self.rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
}

fn unreadable(text: &str) -> Error {
    let shown: String = text.chars().take(60).collect();
    Error::new(ErrorKind::Data, format!("{shown:?} is not a data position"))
        .because("it is written as epoch:taken or epoch:taken@place")
}

/// Where a run of a pipeline stands. Shown as `epoch:taken@state`, and parses back.
///
/// `epoch:taken` alone is enough to continue: then the elements before are produced again where a stage cannot
/// seek. With the state every stage goes there at once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PipelinePosition {
    /// The epoch at which the run began.
    pub epoch: u64,
    /// Elements yielded since (errors count).
    pub taken: u64,
    /// Where each stage stands.
    pub state: Option<IteratorState>,
}

impl PipelinePosition {
    /// After `taken` elements of a run that began at `epoch`.
    pub fn new(epoch: u64, taken: u64) -> PipelinePosition {
        PipelinePosition { epoch, taken, state: None }
    }
}

impl fmt::Display for PipelinePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.taken)?;
        match &self.state {
            Some(state) => write!(f, "@{state}"),
            None => Ok(()),
        }
    }
}

impl FromStr for PipelinePosition {
    type Err = Error;
    fn from_str(text: &str) -> Result<PipelinePosition> {
        let (counts, state) = match text.split_once('@') {
            Some((counts, state)) => (counts, Some(state.parse()?)),
            None => (text, None),
        };
        let parse = |s: &str| s.parse().ok();
        counts
            .split_once(':')
            .and_then(|(e, t)| Some(PipelinePosition { epoch: parse(e)?, taken: parse(t)?, state }))
            .ok_or_else(|| unreadable(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_parses_back() {
        let leaf = IteratorState::at([7]);
        let states = [
            IteratorState::default(),
            leaf.clone(),
            IteratorState::at([1, 2]).over(leaf.clone()),
            IteratorState::at([])
                .over(IteratorState::at([]))
                .over(IteratorState::at([u64::MAX, 0]).over(leaf)),
        ];
        for state in states {
            assert_eq!(state.to_string().parse::<IteratorState>().unwrap(), state, "{state}");
            let position = PipelinePosition { epoch: 3, taken: 17, state: Some(state) };
            assert_eq!(position.to_string().parse::<PipelinePosition>().unwrap(), position);
        }
        assert_eq!("3:17".parse::<PipelinePosition>().unwrap(), PipelinePosition::new(3, 17));
    }

    #[test]
    fn damage_is_an_error() {
        for text in ["3", "a:1", "1:2@x", "1:2@3(", "1:2@3(4))", "1:2@3.", "1:2@99999999999999999999"] {
            assert!(text.parse::<PipelinePosition>().is_err(), "{text}");
        }
        let deep = "(".repeat(100_000);
        assert!(deep.parse::<IteratorState>().is_err());
        assert!(IteratorState::at([1]).number(1).is_err() && IteratorState::at([1]).above(0).is_err());
    }
}
