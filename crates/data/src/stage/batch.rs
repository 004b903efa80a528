//! `batch`: stacks consecutive samples along a new leading dimension.

use crate::Dataset;
use crate::pipeline::{
    BatchBuilder, Batching, Cardinality, DatasetStage, ElementCursor, PipelineRun, PrefetchBuilder,
    RandomAccess, StageId, StageNode, access, at_batch, open, stack_all,
};
use crate::sample::{ElementSpec, Sample};
use crate::stage::delegate::delegate;
use std::ops::Range;
use systole_base::Result;

impl Dataset {
    /// Stacks `n` samples: `name: T[…] → name: T[n, …]`; the last batch may be smaller.
    pub fn batch(&self, n: usize) -> Dataset {
        self.batch_share(n, None)
    }

    /// Like [`Dataset::batch`], but fills only some rows of each batch: those that one of several hosts needs. Shapes
    /// and positions are those of whole batches. With random access only the needed rows are computed, and the others
    /// are zeros; from a stream (TFRecord files, `filter`, …) all are. No later stage may mix rows.
    ///
    /// ```
    /// use systole_data::{BatchShare, Dataset};
    /// let last = Dataset::range(8).batch_share(4, Some(BatchShare { parts: 1..2, of: 2 }));
    /// let batch = last.iter().next().unwrap()?;
    /// assert_eq!(batch.get("value")?.to_f32s(), [0.0, 0.0, 2.0, 3.0]);
    /// # Ok::<(), systole_base::Error>(())
    /// ```
    pub fn batch_share(&self, n: usize, share: Option<BatchShare>) -> Dataset {
        let batching = Batching { size: n, drop_remainder: false };
        self.then(|up| BatchStage { up, batching, share })
    }

    /// Stacks `n` samples: `name: T[…] → name: T[n, …]`; an incomplete last batch is dropped.
    pub fn batch_drop_remainder(&self, n: usize) -> Dataset {
        let batching = Batching { size: n, drop_remainder: true };
        self.then(|up| BatchStage { up, batching, share: None })
    }
}

pub(crate) struct BatchStage {
    pub up: StageNode,
    pub batching: Batching,
    /// Rows that are needed; the others may contain anything.
    pub share: Option<BatchShare>,
}

/// Part of each batch that one of several hosts needs: some of `of` equal parts, if the batch divides evenly.
///
/// ```
/// use systole_data::BatchShare;
/// let half = BatchShare { parts: 2..4, of: 4 };
/// assert_eq!(half.rows(64), 32..64);
/// assert_eq!(half.rows(7), 0..7); // what does not divide is everybody's
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchShare {
    /// Indices of the parts, from 0.
    pub parts: Range<usize>,
    /// Number of equal parts.
    pub of: usize,
}

impl BatchShare {
    /// Returns the rows of a batch of `size`.
    pub fn rows(&self, size: usize) -> Range<usize> {
        let fits = self.parts.start < self.parts.end && self.parts.end <= self.of;
        if !fits || !size.is_multiple_of(self.of) {
            return 0..size;
        }
        let each = size / self.of;
        self.parts.start * each..self.parts.end * each
    }
}

impl DatasetStage for BatchStage {
    delegate!(inputs);

    fn label(&self) -> String {
        let name = if self.batching.drop_remainder { "batch_drop_remainder" } else { "batch" };
        format!("{name}({})", self.batching.size)
    }

    fn cardinality(&self) -> Cardinality {
        self.up.cardinality().map(|n| self.batching.batches(n))
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        self.batching.check(|| self.name())?;
        let Some(up) = access(&self.up, run)? else { return Ok(None) };
        let len = up.len().map(|n| self.batching.batches(n));
        Ok(Some(Box::new(BatchAccess {
            up,
            size: self.batching.size as u64,
            len,
            share: self.share.clone(),
        })))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        self.batching.check(|| self.name())?;
        if let Some((up, f, threads)) = self.up.mapped()
            && self.is_ahead(run)
        {
            // The map's threads also assemble the batches: an element stays in its core's cache.
            let ahead = PrefetchBuilder::new(StageId::of(self), run, threads, None);
            let (up, map) = (open(&up, run)?, run.watch().id(StageId::of(&*self.up).address));
            return Ok(Box::new(ahead.over_batches(up, (f, map), self.batching)));
        }
        let up = open(&self.up, run)?;
        Ok(Box::new(BatchCursor { up, batching: self.batching, at: 0 }))
    }

    fn is_ahead(&self, run: &PipelineRun) -> bool {
        self.up.mapped().is_some() && run.has_threads() && run.is_deterministic()
    }

    fn spec(&self) -> Result<ElementSpec> {
        self.batching.check(|| self.name())?;
        let one = self.up.spec()?;
        match self.up.cardinality() {
            Cardinality::Finite(n) if n < self.batching.size as u64 && !self.batching.drop_remainder => {
                Ok(one.stacked(n as usize))
            }
            _ => Ok(one.stacked(self.batching.size)),
        }
    }
}

struct BatchAccess {
    up: Box<dyn RandomAccess>,
    size: u64,
    len: Option<u64>,
    share: Option<BatchShare>,
}

impl RandomAccess for BatchAccess {
    fn len(&self) -> Option<u64> {
        self.len
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        // Saturating: a damaged checkpoint may request any position in an endless pipeline.
        let start = index.saturating_mul(self.size);
        let count = self.size.min(self.up.len().map_or(u64::MAX, |n| n - start));
        let wanted = self.share.as_ref().map_or(0..count as usize, |share| share.rows(count as usize));
        let up = &mut self.up;
        if wanted == (0..count as usize) {
            let all: Vec<u64> = (0..count).map(|i| start.saturating_add(i)).collect();
            if let Some(batch) = up.gather(&all) {
                return batch.map_err(|e| at_batch(e, index));
            }
        }
        let mut gather = || {
            let at = |i: usize| start.saturating_add(i as u64);
            let mut stack = BatchBuilder::new(up.get(at(wanted.start))?, count as usize, wanted.start)?;
            for i in wanted.start + 1..wanted.end {
                stack.push(up.get(at(i))?)?;
            }
            stack.rest();
            Ok(stack.finish())
        };
        gather().map_err(|e| at_batch(e, index))
    }
}

struct BatchCursor {
    up: Box<dyn ElementCursor>,
    batching: Batching,
    at: u64,
}

impl ElementCursor for BatchCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        let items = self.batching.next(&mut *self.up)?;
        self.at += 1;
        Some(stack_all(items).map_err(|e| at_batch(e, self.at - 1)))
    }

    fn skip(&mut self, n: u64) -> u64 {
        let skipped = self.batching.skip(&mut *self.up, n);
        self.at += skipped;
        skipped
    }

    delegate!(position at);
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, resumes, stream, values};
    use crate::{Cardinality, Dataset, HostArray, Sample};
    use systole_base::{DType, ErrorKind, Literal};
    use systole_testing::assert_error;

    fn sizes(d: &Dataset) -> Vec<usize> {
        d.iter().map(|b| b.unwrap().get("x").unwrap().shape()[0]).collect()
    }

    #[test]
    fn the_last_batch_may_be_smaller_or_dropped() {
        for d in [ints(7), stream(7)] {
            assert_eq!(sizes(&d.batch(3)), [3, 3, 1]);
            assert_eq!(sizes(&d.batch_drop_remainder(3)), [3, 3]);
            assert_eq!(sizes(&d.batch(usize::MAX)), [7]);
            assert_eq!(values(&d.batch(3)), [0, 1, 2, 3, 4, 5, 6]);
            assert_eq!(sizes(&d.repeat().batch(5).take(4)), [5; 4], "batches cross the rounds");
        }
        assert_eq!(ints(7).batch(3).cardinality(), Cardinality::Finite(3));
        assert_eq!(ints(7).batch(3).element_spec().unwrap().to_string(), "x: i32[3]");
        assert_eq!(ints(2).batch(3).element_spec().unwrap().to_string(), "x: i32[2]");
        assert_eq!(ints(7).batch(3).batch(2).element_spec().unwrap().to_string(), "x: i32[2, 3]");
    }

    #[test]
    fn rows_are_the_elements() {
        let x = Literal::from_slice([3, 2], &[1u8, 2, 3, 4, 5, 6]).unwrap();
        let d = Dataset::from_tensor_slices([("x", x)]).unwrap();
        let b = d.batch(2).iter().next().unwrap().unwrap();
        assert_eq!(b.get("x").unwrap().ty().to_string(), "ui8[2, 2]");
        assert_eq!(b.get("x").unwrap().as_slice::<u8>().unwrap(), [1, 2, 3, 4]);
    }

    /// A map of each element to itself makes the batches from single elements.
    #[test]
    fn rows_that_are_copied_at_once_are_those_of_single_elements() {
        let images: Vec<u8> = (0..23 * 6).map(|i| (i * 7 % 251) as u8).collect();
        let labels: Vec<i64> = (0..23).collect();
        let fields = [
            ("image", Literal::from_slice([23, 2, 3], &images).unwrap()),
            ("label", Literal::from_slice([23], &labels).unwrap()),
            ("nothing", Literal::zeros(systole_base::TensorType::new(DType::F32, [23, 0]))),
        ];
        let rows = Dataset::from_tensor_slices(fields).unwrap();
        let chains: [fn(&Dataset) -> Dataset; 4] = [
            |d| d.clone(),
            |d| d.shuffle(23, 5).repeat_n(3),
            |d| d.skip(4).take(17).shuffle(5, 1).repeat(),
            |d| d.shard(2, 1).shuffle(23, 3).repeat_n(2),
        ];
        for chain in chains {
            let (own, single) = (chain(&rows), chain(&rows.map(|s: Sample| s)));
            for size in [1, 4, 10, 23] {
                let all = |d: &Dataset| -> Vec<_> {
                    let batches = d.batch(size).take(9).iter().map(|b| b.unwrap());
                    batches
                        .map(|b| ["image", "label", "nothing"].map(|n| b.get(n).unwrap().clone()))
                        .collect()
                };
                assert_eq!(all(&own), all(&single), "batches of {size}");
                resumes(&own.batch(size).take(9));
            }
        }
    }

    #[test]
    fn elements_that_differ_are_named() {
        for d in [ints(4), stream(4)] {
            let d = d.map(|s| {
                let i = s.get("x").unwrap().get(0).as_i64();
                if i == 3 { s.map("x", |x| x.cast(DType::F32)) } else { s }
            });
            let items: Vec<_> = d.batch(2).iter().collect();
            let e = items[1].as_ref().unwrap_err().to_string();
            assert!(items.len() == 2 && items[0].is_ok());
            assert!(e.contains("f32[]") && e.contains("i32[]") && e.contains("batch 1"), "{e}");
            let more = d.map(|s: Sample| {
                let extra = s.get("x").unwrap().get(0).as_i64() == 1;
                if extra { s.with("y", HostArray::scalar(DType::F32, 0.0)) } else { s }
            });
            assert_error(&more.batch(2).iter().next().unwrap().unwrap_err(), ErrorKind::Data, &["1"]);
        }
    }
}
