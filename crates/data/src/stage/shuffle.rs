//! `shuffle`: tf.data's shuffle buffer with counter-based random numbers.
//!
//! The order is a pure function of (seed, epoch, index). With random access the same algorithm runs on indices alone
//! and yields a permutation: the order equals that of a stream, but no element is buffered and any position is reached
//! in constant time.

use crate::Dataset;
use crate::mutex::lock;
use crate::pipeline::{
    DatasetStage, ElementCursor, HeldElements, IteratorState, MemoryBudget, MemoryLease, PipelineRun,
    RandomAccess, StageNode, access, foreign, open,
};
use crate::sample::{ElementSpec, Sample};
use crate::stage::delegate::delegate;
use std::sync::{Arc, Mutex, Weak};
use systole_base::rng::{RandomStream, hash_name};
use systole_base::{Error, Result, ensure, err};

impl Dataset {
    /// Shuffles the elements: the order is a pure function of (seed, epoch, index) and differs between epochs.
    ///
    /// As in tf.data, each output is drawn from a buffer of `buffer_size` elements; with `buffer_size` at least the
    /// number of elements, the result is a uniform permutation. With random access only indices are shuffled: no
    /// element is copied or computed early.
    pub fn shuffle(&self, buffer_size: usize, seed: u64) -> Dataset {
        self.shuffle_with(ShuffleOptions { buffer_size, seed, reshuffle_each_iteration: true })
    }

    /// [`Dataset::shuffle`] with all options.
    pub fn shuffle_with(&self, options: ShuffleOptions) -> Dataset {
        self.then(|up| ShuffleStage::new(up, options))
    }
}

/// Options of [`crate::Dataset::shuffle_with`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShuffleOptions {
    /// Buffer size in elements; at least the size of the dataset yields a uniform permutation.
    pub buffer_size: usize,
    /// Random seed; shuffles with the same seed have the same order.
    pub seed: u64,
    /// Whether each epoch has another order (tf.data's default); otherwise all have that of epoch 0.
    pub reshuffle_each_iteration: bool,
}

pub(crate) struct ShuffleStage {
    up: StageNode,
    options: ShuffleOptions,
    /// Permutations in use, by epoch and length, shared by the threads of one run.
    tables: Mutex<Vec<ShuffleOrder>>,
}

/// Epoch, length, permutation.
type ShuffleOrder = (u64, u32, Weak<Vec<u32>>);

impl ShuffleStage {
    pub fn new(up: StageNode, options: ShuffleOptions) -> ShuffleStage {
        ShuffleStage { up, options, tables: Mutex::default() }
    }

    fn draws(&self, epoch: u64) -> Result<RandomStream> {
        if self.options.buffer_size == 0 {
            return Err(err!(Config, "the shuffle buffer size of `shuffle` is 0")
                .at(self.name())
                .because("elements are drawn from the shuffle buffer, so the buffer must hold at least one")
                .hint("use the number of elements for a full shuffle, or remove shuffle"));
        }
        let epoch = if self.options.reshuffle_each_iteration { epoch } else { 0 };
        Ok(RandomStream::new(self.options.seed, hash_name("shuffle"), epoch))
    }

    fn table(&self, n: u32, epoch: u64) -> Result<Arc<Vec<u32>>> {
        let draws = self.draws(epoch)?;
        let mut tables = lock(&self.tables);
        tables.retain(|(_, _, table)| table.strong_count() > 0);
        let known = tables.iter().find(|(e, m, _)| (*e, *m) == (epoch, n));
        if let Some(table) = known.and_then(|(_, _, table)| table.upgrade()) {
            return Ok(table);
        }
        let mut indices = 0..n;
        let mut buffer = ShuffleBuffer::new(self.options.buffer_size, draws);
        let next = || {
            while buffer.has_room() {
                buffer.add(indices.next());
            }
            buffer.draw()
        };
        let table = Arc::new(std::iter::from_fn(next).collect());
        tables.push((epoch, n, Arc::downgrade(&table)));
        Ok(table)
    }
}

impl DatasetStage for ShuffleStage {
    delegate!(inputs);

    fn label(&self) -> String {
        format!("shuffle({})", self.options.buffer_size)
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        self.draws(run.epoch())?;
        let Some(up) = access(&self.up, run)? else { return Ok(None) };
        // An endless source, or one too long for 32-bit indices, uses the buffer.
        let Some(n) = up.len().and_then(|n| u32::try_from(n).ok()) else { return Ok(None) };
        Ok(Some(Box::new(ShuffleAccess { up, order: self.table(n, run.epoch())? })))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        let buffer = ShuffleBuffer::new(self.options.buffer_size, self.draws(run.epoch())?);
        let up = HeldElements::new(open(&self.up, run)?);
        let budget = run.budget().clone();
        budget.enter();
        Ok(Box::new(ShuffleCursor { up, buffer, lease: budget.insist(0), bytes: 0, budget }))
    }

    fn spec(&self) -> Result<ElementSpec> {
        self.draws(0)?;
        self.up.spec()
    }

    fn is_random(&self) -> bool {
        self.options.reshuffle_each_iteration || self.up.is_random()
    }
}

/// The algorithm: keep up to `size` items, yield a random one, replace it with the source's next item.
struct ShuffleBuffer<T> {
    items: Vec<T>,
    size: usize,
    draws: RandomStream,
    ended: bool,
}

impl<T> ShuffleBuffer<T> {
    fn new(size: usize, draws: RandomStream) -> ShuffleBuffer<T> {
        ShuffleBuffer { items: Vec::new(), size, draws, ended: false }
    }

    /// Whether to read an item before the next draw.
    fn has_room(&self) -> bool {
        !self.ended && self.items.len() < self.size
    }

    fn add(&mut self, item: Option<T>) {
        match item {
            Some(item) => self.items.push(item),
            None => self.ended = true,
        }
    }

    fn draw(&mut self) -> Option<T> {
        if self.items.is_empty() {
            return None;
        }
        let at = self.draws.below(self.items.len() as u64) as usize;
        Some(self.items.swap_remove(at))
    }
}

struct ShuffleAccess {
    up: Box<dyn RandomAccess>,
    order: Arc<Vec<u32>>,
}

impl RandomAccess for ShuffleAccess {
    fn len(&self) -> Option<u64> {
        Some(self.order.len() as u64)
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        self.up.get(self.order[index as usize].into())
    }

    fn gather(&mut self, indices: &[u64]) -> Option<Result<Sample>> {
        let drawn: Vec<u64> = indices.iter().map(|&i| self.order[i as usize].into()).collect();
        self.up.gather(&drawn)
    }
}

struct ShuffleCursor {
    up: HeldElements,
    buffer: ShuffleBuffer<(u64, Result<Sample>)>,
    lease: MemoryLease,
    bytes: usize,
    budget: Arc<MemoryBudget>,
}

impl Drop for ShuffleCursor {
    fn drop(&mut self) {
        self.budget.leave();
    }
}

impl ShuffleCursor {
    /// Returns an error if the buffer exceeds the memory budget, rather than risk an out-of-memory kill.
    fn too_large(&mut self) -> Option<Error> {
        if self.bytes <= self.budget.limit() {
            return None;
        }
        let held = self.buffer.items.len();
        self.buffer.items.clear();
        self.buffer.ended = true;
        Some(
            err!(Data, "the shuffle buffer is larger than the pipeline's memory budget")
                .because(format!(
                    "{held} of {} elements already use {} bytes, but the budget is {} bytes",
                    self.buffer.size,
                    self.bytes,
                    self.budget.limit()
                ))
                .hint("increase ram_budget, use a smaller buffer, or shuffle before decoding"),
        )
    }
}

impl ElementCursor for ShuffleCursor {
    /// Errors are yielded immediately: if they were drawn like elements, the order of the others would change, and a
    /// run resumed after fixing the problem would differ from one without it.
    fn next(&mut self) -> Option<Result<Sample>> {
        let filling = self.buffer.items.len() + 1 < self.buffer.size;
        // The oldest held element determines which source states can be dropped.
        self.up.forget(|| self.buffer.items.iter().map(|(seq, _)| *seq).min());
        while self.buffer.has_room() {
            let item = self.up.pull();
            match &item {
                Some((_, Err(e))) => return Some(Err(e.clone())),
                Some((_, Ok(sample))) if filling => {
                    // Counted immediately: otherwise a later queue would use the room that this element leaves.
                    self.bytes += sample.bytes();
                    self.lease.settle(self.bytes);
                }
                _ => {}
            }
            self.buffer.add(item);
            if filling && let Some(e) = self.too_large() {
                return Some(Err(e));
            }
        }
        self.buffer.draw().map(|(_, sample)| sample)
    }

    fn save(&self) -> IteratorState {
        let held: Vec<u64> = self.buffer.items.iter().map(|(seq, _)| *seq).collect();
        IteratorState::at([self.buffer.draws.drawn(), self.buffer.ended as u64]).over(self.up.save(&held))
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.buffer.draws.seek(state.number(0)?);
        self.buffer.items = self.up.restore(state.above(0)?)?;
        self.buffer.ended = state.number(1)? == 1;
        ensure!(self.buffer.items.len() <= self.buffer.size, foreign());
        self.bytes = self.buffer.items.iter().filter_map(|(_, s)| s.as_ref().ok()).map(Sample::bytes).sum();
        self.lease.settle(self.bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::test::{ints, resumes, stream, values, values_of};
    use systole_base::ErrorKind;

    fn sorted(mut v: Vec<i64>) -> Vec<i64> {
        v.sort();
        v
    }

    #[test]
    fn is_a_permutation_that_changes_with_seed_and_epoch() {
        let n = 1000;
        for d in [ints(n), stream(n)] {
            for buffer in [1, 10, 1000, usize::MAX] {
                let s = d.shuffle(buffer, 7);
                assert_eq!(sorted(values(&s)), (0..n as i64).collect::<Vec<_>>());
                assert_eq!(values(&s), values(&s));
            }
            let s = d.shuffle(1000, 7);
            let (a, b) = (values(&s), values_of(s.iter_epoch(1)));
            assert!(a != b && a != values(&d.shuffle(1000, 8)) && a != values(&d));
            assert_eq!(values(&s.repeat_n(2)), [a, b].concat(), "repeat moves to the next epoch");
            assert_eq!(values(&d.shuffle(1, 7)), values(&d));
        }
    }

    #[test]
    fn streams_and_random_access_agree() {
        for buffer in [2, 17, 50] {
            assert_eq!(values(&ints(50).shuffle(buffer, 3)), values(&stream(50).shuffle(buffer, 3)));
        }
    }

    #[test]
    fn an_element_never_comes_before_the_buffer_could_hold_it() {
        for (place, value) in values(&ints(500).shuffle(20, 5)).into_iter().enumerate() {
            assert!(value < place as i64 + 20);
        }
    }

    fn number(s: &Sample) -> i64 {
        s.fields().next().unwrap().1.get().unwrap().get(0).as_i64()
    }

    #[test]
    fn an_error_comes_before_any_element_is_drawn_without_what_it_is_about() {
        let broken = |at: i64| {
            stream(40).map(move |s: Sample| match number(&s) == at {
                true => Err(Error::new(ErrorKind::Data, "broken")),
                false => Ok(s),
            })
        };
        let whole = values(&stream(40).shuffle(20, 3));
        for (at, drawn) in [(0, 0), (7, 0), (19, 0), (30, 11)] {
            let items: Vec<Result<Sample>> = broken(at).shuffle(20, 3).iter().collect();
            let first = items.iter().position(Result::is_err).unwrap();
            assert_eq!(first, drawn, "element {at}");
            let before = items[..first].iter().map(|s| number(s.as_ref().unwrap()));
            assert_eq!(before.collect::<Vec<_>>(), whole[..first], "as without the error");
            assert_eq!(items.len(), 40, "the others follow");
            resumes(&broken(at).shuffle(20, 3));
        }
    }

    #[test]
    fn every_place_is_equally_likely() {
        // 2000 shuffles of 4 elements: 24 orders, 83 each expected; chi-square with 23 degrees, p = 1e-4 at 57.
        let mut counts = std::collections::HashMap::new();
        let d = ints(4).shuffle(4, 1);
        (0..2000).for_each(|e| *counts.entry(values_of(d.iter_epoch(e))).or_insert(0) += 1);
        let expected = 2000.0 / 24.0;
        let chi: f64 = counts.values().map(|&c: &i32| (c as f64 - expected).powi(2) / expected).sum();
        assert!(counts.len() == 24 && chi < 57.0, "{chi}");
    }

    #[test]
    fn reshuffling_can_be_turned_off() {
        let o = ShuffleOptions { buffer_size: 50, seed: 1, reshuffle_each_iteration: false };
        let s = ints(50).shuffle_with(o);
        assert_eq!(values(&s), values_of(s.iter_epoch(9)));
    }
}
