//! `take`: yields at most the first n elements.

use crate::Dataset;
use crate::pipeline::{
    Cardinality, DatasetStage, ElementCursor, IteratorState, PipelineRun, RandomAccess, StageNode, access,
    foreign, open,
};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use systole_base::Result;

impl Dataset {
    /// Takes at most the first `n` elements.
    pub fn take(&self, n: u64) -> Dataset {
        self.then(|up| TakeStage { up, n })
    }
}

pub(crate) struct TakeStage {
    pub up: StageNode,
    pub n: u64,
}

impl DatasetStage for TakeStage {
    delegate!(inputs, spec);

    fn label(&self) -> String {
        format!("take({})", self.n)
    }

    fn cardinality(&self) -> Cardinality {
        match self.up.cardinality() {
            Cardinality::Finite(n) => Cardinality::Finite(n.min(self.n)),
            Cardinality::Infinite => Cardinality::Finite(self.n),
            Cardinality::Unknown => Cardinality::Unknown,
        }
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        Ok(access(&self.up, run)?.map(|up| Box::new(TakeReader { up, left: self.n }) as _))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(TakeReader { up: open(&self.up, run)?, left: self.n }))
    }
}

struct TakeReader<U> {
    up: U,
    left: u64,
}

impl RandomAccess for TakeReader<Box<dyn RandomAccess>> {
    fn len(&self) -> Option<u64> {
        Some(self.up.len().map_or(self.left, |n| n.min(self.left)))
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        self.up.get(index)
    }

    fn gather(&mut self, indices: &[u64]) -> Option<Result<Sample>> {
        self.up.gather(indices)
    }
}

impl ElementCursor for TakeReader<Box<dyn ElementCursor>> {
    fn next(&mut self) -> Option<Result<Sample>> {
        self.left = self.left.checked_sub(1)?;
        self.up.next()
    }

    fn skip(&mut self, n: u64) -> u64 {
        let skipped = self.up.skip(n.min(self.left));
        self.left -= skipped;
        skipped
    }

    fn save(&self) -> IteratorState {
        IteratorState::at([self.left]).over(self.up.save())
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.left = state.number(0).ok().filter(|&n| n <= self.left).ok_or_else(foreign)?;
        self.up.restore(state.above(0)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::Cardinality;
    use crate::stage::test::{ints, stream, values};

    #[test]
    fn takes_no_more_than_there_is() {
        for d in [ints(5), stream(5)] {
            assert_eq!(values(&d.take(3)), [0, 1, 2]);
            assert_eq!(values(&d.take(9)), [0, 1, 2, 3, 4]);
            assert_eq!(values(&d.take(0)), [] as [i64; 0]);
            assert_eq!(values(&d.repeat().take(7)), [0, 1, 2, 3, 4, 0, 1]);
        }
        assert_eq!(ints(5).repeat().take(7).cardinality(), Cardinality::Finite(7));
    }
}
