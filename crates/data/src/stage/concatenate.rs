//! `concatenate`: yields the elements of one dataset, then those of another.

use crate::Dataset;
use crate::pipeline::{
    Cardinality, DatasetStage, ElementCursor, IteratorState, PipelineRun, RandomAccess, StageNode, access,
    foreign, open,
};
use crate::sample::{ElementSpec, Sample};
use systole_base::Result;

impl Dataset {
    /// Appends the elements of another dataset.
    pub fn concatenate(&self, other: &Dataset) -> Dataset {
        let second = other.clone().into_node();
        self.then(|first| ConcatenateStage { parts: [first, second] })
    }
}

struct ConcatenateStage {
    parts: [StageNode; 2],
}

impl DatasetStage for ConcatenateStage {
    fn label(&self) -> String {
        "concatenate".into()
    }

    fn inputs(&self) -> Vec<StageNode> {
        self.parts.to_vec()
    }

    fn cardinality(&self) -> Cardinality {
        match self.parts.each_ref().map(|p| p.cardinality()) {
            [Cardinality::Finite(a), Cardinality::Finite(b)] => Cardinality::Finite(a.saturating_add(b)),
            [Cardinality::Infinite, _] | [Cardinality::Finite(_), Cardinality::Infinite] => {
                Cardinality::Infinite
            }
            _ => Cardinality::Unknown,
        }
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        let [first, second] = &self.parts;
        let (Some(first), Some(second)) = (access(first, run)?, access(second, run)?) else {
            return Ok(None);
        };
        Ok(Some(Box::new(ConcatenateAccess { first, second })))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        let [first, second] = &self.parts;
        Ok(Box::new(ConcatenateCursor { parts: [open(first, run)?, open(second, run)?], at: 0 }))
    }

    fn spec(&self) -> Result<ElementSpec> {
        let [first, second] = &self.parts;
        if first.cardinality() == Cardinality::Finite(0) { second.spec() } else { first.spec() }
    }
}

struct ConcatenateAccess {
    first: Box<dyn RandomAccess>,
    second: Box<dyn RandomAccess>,
}

impl RandomAccess for ConcatenateAccess {
    fn len(&self) -> Option<u64> {
        Some(self.first.len()?.saturating_add(self.second.len()?))
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        match self.first.len() {
            Some(n) if index >= n => self.second.get(index - n),
            _ => self.first.get(index),
        }
    }
}

struct ConcatenateCursor {
    parts: [Box<dyn ElementCursor>; 2],
    at: usize,
}

impl ElementCursor for ConcatenateCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        if self.at == 0 {
            if let Some(item) = self.parts[0].next() {
                return Some(item);
            }
            self.at = 1;
        }
        self.parts[1].next()
    }

    fn skip(&mut self, n: u64) -> u64 {
        let first = if self.at == 0 { self.parts[0].skip(n) } else { 0 };
        if first < n {
            self.at = 1;
        }
        first + self.parts[1].skip(n - first)
    }

    fn save(&self) -> IteratorState {
        IteratorState::at([self.at as u64]).over(self.parts[self.at].save())
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.at = state.number(0)? as usize;
        self.parts.get_mut(self.at).ok_or_else(foreign)?.restore(state.above(0)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, resumes, stream, values};

    #[test]
    fn one_after_the_other() {
        for (a, b) in [(ints(3), ints(2)), (stream(3), ints(2)), (ints(3), stream(2)), (stream(3), stream(0))]
        {
            let expected = [values(&a), values(&b)].concat();
            let d = a.concatenate(&b);
            assert_eq!(values(&d), expected);
            resumes(&d.repeat_n(2));
            resumes(&d.shuffle(3, 1));
        }
        assert_eq!(ints(3).concatenate(&ints(2)).cardinality().finite(), Some(5));
        assert_eq!(ints(0).concatenate(&ints(2)).element_spec().unwrap().to_string(), "x: i32[]");
    }
}
