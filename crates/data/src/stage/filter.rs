//! `filter`: keeps the samples that satisfy a predicate.
//!
//! Cannot seek, because the kept elements are not known in advance.

use crate::Dataset;
use crate::pipeline::{DatasetStage, ElementCursor, PipelineRun, StageNode, open};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use std::sync::Arc;
use systole_base::Result;

impl Dataset {
    /// Keeps the samples that satisfy a predicate. Resuming replays the elements before the position.
    pub fn filter(&self, keep: impl Fn(&Sample) -> bool + Send + Sync + 'static) -> Dataset {
        self.then(|up| FilterStage { up, keep: Arc::new(keep) })
    }
}

type FilterPredicate = Arc<dyn Fn(&Sample) -> bool + Send + Sync>;

pub(crate) struct FilterStage {
    pub up: StageNode,
    pub keep: FilterPredicate,
}

impl DatasetStage for FilterStage {
    delegate!(inputs, fewer, spec);

    fn label(&self) -> String {
        "filter".into()
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(FilterCursor { up: open(&self.up, run)?, keep: self.keep.clone() }))
    }
}

struct FilterCursor {
    up: Box<dyn ElementCursor>,
    keep: FilterPredicate,
}

impl ElementCursor for FilterCursor {
    delegate!(position);

    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            match self.up.next()? {
                Ok(sample) if !(self.keep)(&sample) => continue,
                item => return Some(item),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, values};

    #[test]
    fn keeps_what_the_predicate_keeps() {
        let even = ints(7).filter(|s| s.get("x").unwrap().get(0).as_i64() % 2 == 0);
        assert_eq!(values(&even), [0, 2, 4, 6]);
        assert_eq!(values(&even.batch(3)), [0, 2, 4, 6]);
        assert_eq!(values(&ints(3).filter(|_| false).repeat()), [] as [i64; 0], "an endless search ends");
    }
}
