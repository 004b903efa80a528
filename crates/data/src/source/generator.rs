//! `from_generator`: samples from a closure that returns an iterator for each epoch.

use crate::Dataset;
use crate::pipeline::{DatasetStage, ElementCursor, IteratorState, PipelineRun, replay};
use crate::sample::{Sample, SampleOrigin};
use std::sync::Arc;
use systole_base::Result;

impl Dataset {
    /// Creates a dataset from the samples that `start` returns; it is called once per epoch and must yield the same
    /// samples.
    pub fn from_generator<I>(start: impl Fn() -> I + Send + Sync + 'static) -> Dataset
    where
        I: Iterator<Item = Result<Sample>> + Send + 'static,
    {
        Dataset::new(GeneratorStage::new(move || Box::new(start())))
    }
}

type SampleIterator = Box<dyn Iterator<Item = Result<Sample>> + Send>;

pub(crate) struct GeneratorStage {
    start: Box<dyn Fn() -> SampleIterator + Send + Sync>,
}

impl GeneratorStage {
    pub fn new(start: impl Fn() -> SampleIterator + Send + Sync + 'static) -> GeneratorStage {
        GeneratorStage { start: Box::new(start) }
    }
}

impl DatasetStage for GeneratorStage {
    fn label(&self) -> String {
        "from_generator".into()
    }

    fn stream(&self, _run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(GeneratorCursor { samples: (self.start)(), source: self.label().into(), at: 0 }))
    }
}

struct GeneratorCursor {
    samples: SampleIterator,
    source: Arc<str>,
    at: u64,
}

impl ElementCursor for GeneratorCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        let item = self.samples.next()?;
        let origin = SampleOrigin { source: self.source.clone(), index: self.at };
        self.at += 1;
        Some(match item {
            Ok(sample) => sample.with_origin(Some(origin)).check(),
            Err(e) => Err(Sample::default().with_origin(Some(origin)).locate(e)),
        })
    }

    fn save(&self) -> IteratorState {
        IteratorState::at([self.at])
    }

    // An iterator cannot seek: it is replayed.
    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        replay(self, state)
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{stream, values};
    use crate::{Dataset, Sample};
    use systole_base::{Error, ErrorKind};

    #[test]
    fn starts_anew_for_each_run() {
        let d = stream(3);
        assert_eq!(values(&d), [0, 1, 2]);
        assert_eq!(values(&d.repeat_n(2)), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn errors_of_the_iterator_are_located() {
        let d = Dataset::from_generator(|| {
            [Ok(Sample::default()), Err(Error::new(ErrorKind::Data, "lost"))].into_iter()
        });
        let e = d.iter().nth(1).unwrap().unwrap_err().to_string();
        assert!(e.contains("lost") && e.contains("element 1 of from_generator"), "{e}");
    }
}
