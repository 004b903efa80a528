//! `map_random`: applies a function of each sample and a random stream.
//!
//! The stream is keyed by (seed, epoch, index): results are the same with any number of threads and after any resume,
//! and differ between epochs.

use super::enumerate::EnumerateReader;
use super::map::{label, over_stream};
use crate::Dataset;
use crate::pipeline::{
    DatasetStage, ElementCursor, MapFn, PipelineRun, RandomAccess, StageId, StageNode, ThreadCount, access,
    apply, open,
};
use crate::sample::{IntoSample, Sample};
use crate::stage::delegate::delegate;
use std::sync::Arc;
use systole_base::Result;
use systole_base::rng::{RandomStream, hash_name, mix};

type RandomMapFn = Arc<dyn Fn(Sample, &mut RandomStream) -> Result<Sample> + Send + Sync>;

impl Dataset {
    /// Applies a function of each sample and a random stream keyed by (seed, epoch, element index): for augmentation.
    pub fn map_random<R: IntoSample>(
        &self,
        seed: u64,
        f: impl Fn(Sample, &mut RandomStream) -> R + Send + Sync + 'static,
    ) -> Dataset {
        self.randomly(seed, f, None)
    }

    /// [`Dataset::map_random`] on `threads` threads ([`crate::AUTOTUNE`]: tuned); the elements are the same.
    pub fn map_random_parallel<R: IntoSample>(
        &self,
        seed: u64,
        f: impl Fn(Sample, &mut RandomStream) -> R + Send + Sync + 'static,
        threads: usize,
    ) -> Dataset {
        self.randomly(seed, f, Some(ThreadCount::of(threads)))
    }

    fn randomly<R: IntoSample>(
        &self,
        seed: u64,
        f: impl Fn(Sample, &mut RandomStream) -> R + Send + Sync + 'static,
        threads: Option<ThreadCount>,
    ) -> Dataset {
        let f: RandomMapFn = Arc::new(move |s, rng| f(s, rng).into_sample());
        self.then(|up| RandomMapStage { up, f, seed, threads })
    }
}

struct RandomMapStage {
    up: StageNode,
    f: RandomMapFn,
    seed: u64,
    threads: Option<ThreadCount>,
}

impl RandomMapStage {
    /// Returns the function for numbered samples in an epoch.
    fn keyed(&self, run: &PipelineRun) -> MapFn {
        let (f, seed, stream) = (self.f.clone(), self.seed, hash_name("map_random") ^ mix(run.epoch()));
        Arc::new(move |s| {
            let mut rng = RandomStream::new(seed, stream, s.number());
            f(s, &mut rng)
        })
    }
}

impl DatasetStage for RandomMapStage {
    delegate!(inputs);

    fn label(&self) -> String {
        label("map_random", self.threads)
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        let f = self.keyed(run);
        Ok(access(&self.up, run)?.map(|up| Box::new(RandomMapReader { up, f }) as _))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        // Indices are assigned before threads take the elements.
        let number = |s: Sample, n| Ok(s.with_number(n));
        let up = Box::new(EnumerateReader { up: open(&self.up, run)?, at: 0, number });
        over_stream(StageId::of(self), run, up, self.keyed(run), self.threads)
    }

    fn threads(&self) -> Option<ThreadCount> {
        self.threads.max(self.up.threads())
    }

    fn is_random(&self) -> bool {
        true
    }
}

struct RandomMapReader {
    up: Box<dyn RandomAccess>,
    f: MapFn,
}

impl RandomAccess for RandomMapReader {
    delegate!(len);

    fn get(&mut self, index: u64) -> Result<Sample> {
        apply(&self.f, self.up.get(index)?.with_number(index))
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, resumes, stream, values, values_of};
    use crate::{Dataset, Sample};
    use systole_base::rng::RandomStream;

    fn noise(s: Sample, rng: &mut RandomStream) -> Sample {
        let x = rng.below(1000) as f64;
        s.map("x", |v| v * 1000 + x)
    }

    #[test]
    fn draws_belong_to_the_element_whatever_runs_it() {
        let of = |d: Dataset| d.map_random(7, noise);
        let plain = values(&of(ints(50)));
        assert_eq!(values(&of(stream(50))), plain);
        for threads in [1, 3, crate::AUTOTUNE] {
            for d in [ints(50), stream(50)] {
                assert_eq!(values(&d.map_random_parallel(7, noise, threads)), plain);
                assert_eq!(values(&d.map_random_parallel(7, noise, threads).debug()), plain);
            }
        }
        assert!(
            values(&ints(50).map_random(8, noise)) != plain && values_of(of(ints(50)).iter_epoch(1)) != plain
        );
        let d = stream(9).map_random_parallel(7, noise, 2);
        resumes(&d.shuffle(4, 1).repeat_n(2));
        resumes(&ints(9).map_random_parallel(7, noise, 2).shuffle(9, 1).batch(2).prefetch(2));
    }

    #[test]
    fn a_cache_below_is_warned_about() {
        let warnings = ints(3).map_random(1, noise).cache().batch(2).warnings();
        assert!(warnings.len() == 1 && warnings[0].contains("move cache before"), "{warnings:?}");
        assert!(ints(3).cache().map_random(1, noise).shuffle(3, 1).warnings().is_empty());
    }
}
