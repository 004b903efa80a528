//! `scan`: applies a function to each sample with a state that is carried from sample to sample.
//!
//! Restoring a position recomputes the state from the start of the epoch.

use crate::Dataset;
use crate::pipeline::{DatasetStage, ElementCursor, PipelineRun, StageNode, open};
use crate::sample::Sample;
use crate::stage::delegate::{delegate, replayed_position};
use std::sync::Arc;
use systole_base::Result;

type ScanFn = Arc<dyn Fn(Sample, Sample) -> Result<(Sample, Sample)> + Send + Sync>;

impl Dataset {
    /// Applies `f(state, element) → (state, element)`, from `initial` on in every epoch: running sums, differences,
    /// counters. An element that is an error does not change the state.
    ///
    /// Resuming computes the elements before the position again.
    pub fn scan(
        &self,
        initial: Sample,
        f: impl Fn(Sample, Sample) -> Result<(Sample, Sample)> + Send + Sync + 'static,
    ) -> Dataset {
        self.then(|up| ScanStage { up, initial, f: Arc::new(f) })
    }
}

struct ScanStage {
    up: StageNode,
    initial: Sample,
    f: ScanFn,
}

impl DatasetStage for ScanStage {
    delegate!(inputs);

    fn label(&self) -> String {
        "scan".into()
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        let up = open(&self.up, run)?;
        Ok(Box::new(ScanCursor { up, state: self.initial.clone(), f: self.f.clone(), taken: 0 }))
    }
}

struct ScanCursor {
    up: Box<dyn ElementCursor>,
    state: Sample,
    f: ScanFn,
    taken: u64,
}

impl ScanCursor {
    fn step(&mut self, sample: Sample) -> Result<Sample> {
        let origin = sample.origin();
        let out = (self.f)(self.state.clone(), sample).and_then(|(state, out)| Ok((state.check()?, out)));
        let (state, out) = out.map_err(|e| Sample::default().with_origin(origin.clone()).locate(e))?;
        self.state = state;
        out.with_origin(origin).check()
    }
}

impl ElementCursor for ScanCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        let item = self.up.next()?;
        self.taken += 1;
        Some(item.and_then(|sample| self.step(sample)))
    }

    replayed_position!();
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, resumes, stream, values};
    use crate::{HostArray, Sample};
    use systole_base::{DType, Result};

    fn running_sum(state: Sample, s: Sample) -> Result<(Sample, Sample)> {
        let sum = state.get("sum")?.get(0).as_i64() + s.get("x")?.get(0).as_i64();
        let sum = Sample::new([("sum", HostArray::scalar(DType::I64, sum as f64))]);
        Ok((sum.clone(), sum))
    }

    #[test]
    fn the_state_goes_from_element_to_element_and_anew_in_each_epoch() {
        let zero = || Sample::new([("sum", HostArray::scalar(DType::I64, 0.0))]);
        for d in [ints(5), stream(5)] {
            let sums = d.scan(zero(), running_sum);
            assert_eq!(values(&sums), [0, 1, 3, 6, 10]);
            assert_eq!(values(&sums.repeat_n(2)), [0, 1, 3, 6, 10, 0, 1, 3, 6, 10]);
            resumes(&sums.shuffle(3, 1).repeat_n(2).batch(2));
            resumes(&d.shuffle(4, 2).scan(zero(), running_sum).prefetch(2));
        }
        let fails = ints(4).map(|s: Sample| match s.get("x")?.get(0).as_i64() {
            1 => Ok(s.map("y", |y| y)),
            _ => Ok::<Sample, systole_base::Error>(s),
        });
        let items: Vec<_> = fails.scan(zero(), running_sum).iter().collect();
        assert!(items[1].is_err());
        assert_eq!(items[3].as_ref().unwrap().get("sum").unwrap().get(0).as_i64(), 5, "0 + 2 + 3");
    }
}
