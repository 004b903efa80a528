//! Resumable positions of a pipeline: [`PipelinePosition`] and [`IteratorState`].
//!
//! [`IteratorState`] is the state of a cursor as a small tree of integers, [`PipelinePosition`] the state of a run. A state
//! contains no elements: buffered elements are read again from the upstream state. Its text form
//! (`epoch:taken@1.7(12)`) can be stored in a checkpoint of any format.

use std::fmt;
use std::str::FromStr;
use systole_base::{Error, Result, err};

/// Maximum depth accepted when parsing; no pipeline produces deeper trees.
const MAX_DEPTH: usize = 64;

/// State of a pipeline cursor: its own numbers, and the states of the upstream stages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IteratorState {
    /// Counters of the stage itself.
    pub numbers: Vec<u64>,
    /// States of the upstream stages, in the stage's order.
    pub inner: Vec<IteratorState>,
}

impl IteratorState {
    /// Creates the state of a source stage: only numbers.
    pub fn at(numbers: impl Into<Vec<u64>>) -> IteratorState {
        IteratorState { numbers: numbers.into(), inner: Vec::new() }
    }

    /// Adds the state of an upstream stage.
    pub fn over(mut self, inner: IteratorState) -> IteratorState {
        self.inner.push(inner);
        self
    }

    /// Returns number `i` of the cursor state. Errors if the state belongs to another pipeline.
    pub fn number(&self, i: usize) -> Result<u64> {
        self.numbers.get(i).copied().ok_or_else(foreign)
    }

    /// Returns the state of upstream stage `i`. Errors if the state belongs to another pipeline.
    pub fn above(&self, i: usize) -> Result<&IteratorState> {
        self.inner.get(i).ok_or_else(foreign)
    }

    /// Number of integers in the whole state tree: its storage cost.
    pub fn size(&self) -> usize {
        1 + self.numbers.len() + self.inner.iter().map(IteratorState::size).sum::<usize>()
    }
}

/// Returns the error for a state of another pipeline.
pub(crate) fn foreign() -> Error {
    err!(Data, "this data position belongs to another pipeline")
        .hint("resume with the same pipeline and data")
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
    err!(Data, "invalid position in the data pipeline: {shown:?}")
        .because("the expected form is epoch:taken or epoch:taken@place")
}

/// Position in a run of a pipeline. Displays as and parses from `epoch:taken@state`.
///
/// `epoch:taken` alone is enough to resume: stages that cannot seek then produce the earlier elements again. With the
/// state, every stage resumes directly.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PipelinePosition {
    /// Epoch in which the run started.
    pub epoch: u64,
    /// Number of elements yielded since then (including errors).
    pub taken: u64,
    /// State of each stage.
    pub state: Option<IteratorState>,
}

impl PipelinePosition {
    /// Creates the position after `taken` elements of a run that started in `epoch`.
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
