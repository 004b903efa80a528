//! `skip`: skips the first n elements.

use crate::Dataset;
use crate::pipeline::{
    Cardinality, DatasetStage, ElementCursor, PipelineRun, RandomAccess, StageNode, access, open,
};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use systole_base::Result;

impl Dataset {
    /// Skips the first `n` elements.
    pub fn skip(&self, n: u64) -> Dataset {
        self.then(|up| SkipStage { up, n })
    }
}

pub(crate) struct SkipStage {
    pub up: StageNode,
    pub n: u64,
}

impl DatasetStage for SkipStage {
    delegate!(inputs, spec);

    fn label(&self) -> String {
        format!("skip({})", self.n)
    }

    fn cardinality(&self) -> Cardinality {
        self.up.cardinality().map(|n| n.saturating_sub(self.n))
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        Ok(access(&self.up, run)?.map(|up| Box::new(SkipAccess { up, n: self.n }) as _))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(SkipCursor { up: open(&self.up, run)?, first: self.n }))
    }
}

struct SkipAccess {
    up: Box<dyn RandomAccess>,
    n: u64,
}

impl RandomAccess for SkipAccess {
    fn len(&self) -> Option<u64> {
        self.up.len().map(|n| n.saturating_sub(self.n))
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        self.up.get(index.saturating_add(self.n))
    }

    fn gather(&mut self, indices: &[u64]) -> Option<Result<Sample>> {
        self.up.gather(&indices.iter().map(|i| i.saturating_add(self.n)).collect::<Vec<_>>())
    }
}

/// Skips lazily, at the first element: a restored position needs no skipping.
struct SkipCursor {
    up: Box<dyn ElementCursor>,
    first: u64,
}

impl ElementCursor for SkipCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        self.skip(0);
        self.up.next()
    }

    fn skip(&mut self, n: u64) -> u64 {
        let first = std::mem::take(&mut self.first);
        if self.up.skip(first) < first { 0 } else { self.up.skip(n) }
    }

    delegate!(position first);
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream, values};

    #[test]
    fn skips_no_more_than_there_is() {
        for d in [ints(5), stream(5)] {
            assert_eq!(values(&d.skip(3)), [3, 4]);
            assert_eq!(values(&d.skip(9)), [] as [i64; 0]);
            assert_eq!(values(&d.skip(4).repeat_n(2)), [4, 4]);
        }
    }
}
