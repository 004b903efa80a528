//! `map`: applies a function to each sample, sequentially or in parallel, preserving order.

use crate::Dataset;
use crate::pipeline::{
    DatasetStage, ElementCursor, InlinePrefetch, MapFn, PipelineRun, PrefetchBuilder, RandomAccess, StageId,
    StageNode, ThreadCount, access, apply, open,
};
use crate::sample::IntoSample;
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use std::sync::Arc;
use systole_base::Result;

impl Dataset {
    /// Applies a function to each sample; it may return a [`Sample`] or a `Result<Sample>`.
    pub fn map<R: IntoSample>(&self, f: impl Fn(Sample) -> R + Send + Sync + 'static) -> Dataset {
        self.then(|up| MapStage { up, f: Arc::new(move |s| f(s).into_sample()), threads: None })
    }

    /// [`Dataset::map`] on `threads` threads ([`crate::AUTOTUNE`]: tuned), preserving order.
    ///
    /// With random access the threads also compute downstream stages, up to the next sequential one, so that batches
    /// are assembled in parallel.
    pub fn map_parallel<R: IntoSample>(
        &self,
        f: impl Fn(Sample) -> R + Send + Sync + 'static,
        threads: usize,
    ) -> Dataset {
        let threads = Some(ThreadCount::of(threads));
        self.then(|up| MapStage { up, f: Arc::new(move |s| f(s).into_sample()), threads })
    }
}

pub(crate) struct MapStage {
    pub up: StageNode,
    pub f: MapFn,
    /// `None`: on the consumer's thread.
    pub threads: Option<ThreadCount>,
}

impl DatasetStage for MapStage {
    delegate!(inputs);

    fn label(&self) -> String {
        label("map", self.threads)
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        Ok(access(&self.up, run)?.map(|up| Box::new(MapReader { up, f: self.f.clone() }) as _))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        let up = open(&self.up, run)?;
        over_stream(StageId::of(self), run, up, self.f.clone(), self.threads)
    }

    fn threads(&self) -> Option<ThreadCount> {
        self.threads.max(self.up.threads())
    }

    fn is_ahead(&self, run: &PipelineRun) -> bool {
        self.threads.is_some() && run.has_threads()
    }

    fn mapped(&self) -> Option<(StageNode, MapFn, ThreadCount)> {
        Some((self.up.clone(), self.f.clone(), self.threads?))
    }
}

/// Returns `map` or `map_parallel(4)`.
pub(super) fn label(name: &str, threads: Option<ThreadCount>) -> String {
    match threads {
        None => name.into(),
        Some(ThreadCount::Fixed(n)) => format!("{name}_parallel({n})"),
        Some(ThreadCount::Auto) => format!("{name}_parallel(AUTOTUNE)"),
    }
}

/// Applies a function to a stream's elements, with the requested threads.
pub(crate) fn over_stream(
    owner: StageId,
    run: &PipelineRun,
    up: Box<dyn ElementCursor>,
    f: MapFn,
    threads: Option<ThreadCount>,
) -> Result<Box<dyn ElementCursor>> {
    Ok(match threads {
        None => Box::new(MapReader { up, f }),
        Some(_) if !run.has_threads() => Box::new(InlinePrefetch { up, f: Some(f) }),
        Some(threads) => Box::new(PrefetchBuilder::new(owner, run, threads, None).over_cursor(up, Some(f))),
    })
}

pub(crate) struct MapReader<U> {
    pub up: U,
    pub f: MapFn,
}

impl RandomAccess for MapReader<Box<dyn RandomAccess>> {
    delegate!(len);

    fn get(&mut self, index: u64) -> Result<Sample> {
        apply(&self.f, self.up.get(index)?)
    }
}

impl ElementCursor for MapReader<Box<dyn ElementCursor>> {
    delegate!(position);

    fn next(&mut self) -> Option<Result<Sample>> {
        Some(self.up.next()?.and_then(|s| apply(&self.f, s)))
    }

    fn skip(&mut self, n: u64) -> u64 {
        self.up.skip(n)
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream, values};
    use crate::{HostArray, Sample};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use systole_base::{DType, Error, ErrorKind, Result};
    use systole_testing::assert_error;

    #[test]
    fn maps_samples_and_results() {
        for d in [ints(3), stream(3)] {
            assert_eq!(values(&d.map(|s| s.map("x", |x| x * 10))), [0, 10, 20]);
            let fails = d.map(|s: Sample| -> Result<Sample> {
                if s.get("x")?.get(0).as_i64() == 1 {
                    return Err(Error::new(ErrorKind::Numeric, "one is refused"));
                }
                Ok(Sample::new([("y", HostArray::scalar(DType::I32, 5.0))]))
            });
            let items: Vec<_> = fails.iter().collect();
            assert!(items[0].is_ok() && items[2].is_ok());
            assert_error(items[1].as_ref().unwrap_err(), ErrorKind::Numeric, &["element 1"]);
        }
    }

    #[test]
    fn seeking_does_not_compute_what_it_leaves_out() {
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        let d = ints(100).map(move |s| {
            seen.fetch_add(1, Ordering::Relaxed);
            s
        });
        let d = d.shuffle(100, 1).repeat().batch(10);
        let p = crate::PipelinePosition::new(0, 55);
        d.iter_at(&p).next().unwrap().unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 10);
    }
}
