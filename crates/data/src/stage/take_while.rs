//! `take_while`: yields the elements before the first one that fails a predicate.

use crate::Dataset;
use crate::pipeline::{DatasetStage, ElementCursor, IteratorState, PipelineRun, StageNode, open};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use std::sync::Arc;
use systole_base::Result;

type TakeWhilePredicate = Arc<dyn Fn(&Sample) -> bool + Send + Sync>;

impl Dataset {
    /// Takes the elements before the first one that fails the predicate.
    pub fn take_while(&self, go_on: impl Fn(&Sample) -> bool + Send + Sync + 'static) -> Dataset {
        self.then(|up| TakeWhileStage { up, go_on: Arc::new(go_on) })
    }
}

struct TakeWhileStage {
    up: StageNode,
    go_on: TakeWhilePredicate,
}

impl DatasetStage for TakeWhileStage {
    delegate!(inputs, fewer);

    fn label(&self) -> String {
        "take_while".into()
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(TakeWhileCursor { up: open(&self.up, run)?, go_on: self.go_on.clone(), over: false }))
    }
}

struct TakeWhileCursor {
    up: Box<dyn ElementCursor>,
    go_on: TakeWhilePredicate,
    over: bool,
}

impl ElementCursor for TakeWhileCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        if self.over {
            return None;
        }
        match self.up.next()? {
            Ok(sample) if !(self.go_on)(&sample) => {
                self.over = true;
                None
            }
            item => Some(item),
        }
    }

    fn save(&self) -> IteratorState {
        IteratorState::at([self.over as u64]).over(self.up.save())
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.over = state.number(0)? == 1;
        self.up.restore(state.above(0)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, resumes, stream, values};

    #[test]
    fn ends_at_the_first_that_fails() {
        for d in [ints(9), stream(9)] {
            let d = d.take_while(|s| s.get("x").unwrap().get(0).as_i64() < 4);
            assert_eq!(values(&d), [0, 1, 2, 3]);
            resumes(&d.repeat_n(2));
        }
    }
}
