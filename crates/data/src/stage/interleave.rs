//! `interleave` and `flat_map`: map each element to a dataset, and interleave the elements of these datasets.
//!
//! The order is tf.data's: `cycle_length` inner datasets are open; each in turn yields up to `block_length` elements; a
//! finished one is replaced by the next in its turn. Threads prefetch from the open datasets without changing the
//! order.

use crate::Dataset;
use crate::pipeline::{
    AccessCursor, DatasetStage, ElementCursor, InlinePrefetch, IteratorState, PipelineRun, PrefetchBuilder,
    StageId, StageNode, ThreadCount, access, foreign, open, prefetch_access,
};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use std::sync::Arc;
use systole_base::{Result, ensure, err};

/// Return type of the function of [`Dataset::interleave`] and [`Dataset::flat_map`].
pub trait IntoDataset {
    /// Returns the dataset, or the error.
    fn into_dataset(self) -> Result<Dataset>;
}

impl IntoDataset for Dataset {
    fn into_dataset(self) -> Result<Dataset> {
        Ok(self)
    }
}

impl IntoDataset for Result<Dataset> {
    fn into_dataset(self) -> Result<Dataset> {
        self
    }
}

type InnerDatasetFn = Arc<dyn Fn(Sample) -> Result<Dataset> + Send + Sync>;

impl Dataset {
    /// Maps each element to a dataset, and yields their elements one dataset after the other.
    pub fn flat_map<R: IntoDataset>(&self, f: impl Fn(Sample) -> R + Send + Sync + 'static) -> Dataset {
        self.interleaved(f, 1, 1, None)
    }

    /// Maps each element to a dataset, and interleaves them: `cycle_length` are open at a time, and each in turn yields
    /// `block_length` elements.
    pub fn interleave<R: IntoDataset>(
        &self,
        f: impl Fn(Sample) -> R + Send + Sync + 'static,
        cycle_length: usize,
        block_length: usize,
    ) -> Dataset {
        self.interleaved(f, cycle_length, block_length, None)
    }

    /// [`Dataset::interleave`] with up to `threads` of the open datasets prefetched, each by its own thread ([`crate::AUTOTUNE`]: within
    /// the core budget). The order is the same.
    pub fn interleave_parallel<R: IntoDataset>(
        &self,
        f: impl Fn(Sample) -> R + Send + Sync + 'static,
        cycle_length: usize,
        block_length: usize,
        threads: usize,
    ) -> Dataset {
        self.interleaved(f, cycle_length, block_length, Some(ThreadCount::of(threads)))
    }

    fn interleaved<R: IntoDataset>(
        &self,
        f: impl Fn(Sample) -> R + Send + Sync + 'static,
        cycle: usize,
        block: usize,
        threads: Option<ThreadCount>,
    ) -> Dataset {
        let f: InnerDatasetFn = Arc::new(move |s| f(s).into_dataset());
        self.then(|up| InterleaveStage { up, f, cycle, block, threads })
    }
}

struct InterleaveStage {
    up: StageNode,
    f: InnerDatasetFn,
    cycle: usize,
    block: usize,
    threads: Option<ThreadCount>,
}

impl DatasetStage for InterleaveStage {
    delegate!(inputs, fewer);

    fn label(&self) -> String {
        match (self.cycle, self.threads) {
            (1, None) => "flat_map".into(),
            (_, None) => format!("interleave({}, {})", self.cycle, self.block),
            (_, Some(ThreadCount::Fixed(n))) => {
                format!("interleave({}, {}, {n} threads)", self.cycle, self.block)
            }
            (_, Some(ThreadCount::Auto)) => format!("interleave({}, {}, AUTOTUNE)", self.cycle, self.block),
        }
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        // An automatic cycle length would make the order depend on the machine.
        if self.cycle == 0 || self.block == 0 || self.cycle == crate::AUTOTUNE {
            return Err(err!(Config, "interleave requires a cycle and a block length of at least 1")
                .at(self.label())
                .because(
                    "cycle and block length determine the order of the elements, so AUTOTUNE is not allowed",
                ));
        }
        let ahead = match self.threads {
            None => 0,
            Some(ThreadCount::Fixed(n)) => n,
            Some(ThreadCount::Auto) => run.tuner().cores(),
        };
        Ok(Box::new(InterleaveCursor {
            up: open(&self.up, run)?,
            node: self.up.clone(),
            opener: InnerDatasetOpener {
                f: self.f.clone(),
                run: run.clone(),
                owner: StageId::of(self),
                block: self.block,
            },
            ahead: if self.threads.is_some() { Some(ahead) } else { None },
            slots: (0..self.cycle).map(|_| None).collect(),
            at: 0,
            given: 0,
            ended: false,
        }))
    }
}

/// Opens the inner dataset of an element.
struct InnerDatasetOpener {
    f: InnerDatasetFn,
    run: PipelineRun,
    owner: StageId,
    block: usize,
}

impl InnerDatasetOpener {
    /// Opens an inner dataset; `ahead`: prefetched by a thread. The states are the same with and without one.
    fn open(&self, element: Result<Sample>, ahead: Option<bool>) -> Result<Box<dyn ElementCursor>> {
        let node = (self.f)(element?)?.into_node();
        let Some(ahead) = ahead else { return open(&node, &self.run) };
        let owner = StageId { address: self.owner.address, label: self.owner.label.clone() };
        let threads = ahead && self.run.has_threads();
        let ahead =
            || PrefetchBuilder::new(owner, &self.run, ThreadCount::Fixed(1), Some(2 * self.block.max(16)));
        Ok(match access(&node, &self.run)? {
            Some(first) if threads => Box::new(prefetch_access(&node, &self.run, ahead(), first)),
            Some(first) => Box::new(AccessCursor { access: first, at: 0 }),
            None if threads => {
                let up = node.stream(&self.run)?;
                Box::new(ahead().over_cursor(up, None))
            }
            None => Box::new(InlinePrefetch { up: node.stream(&self.run)?, f: None }),
        })
    }
}

/// Open inner dataset, and the source's state before its element.
struct InterleaveSlot {
    before: IteratorState,
    cursor: Box<dyn ElementCursor>,
}

struct InterleaveCursor {
    up: Box<dyn ElementCursor>,
    node: StageNode,
    opener: InnerDatasetOpener,
    /// Number of slots to prefetch; `None`: no threads were requested.
    ahead: Option<usize>,
    slots: Vec<Option<InterleaveSlot>>,
    /// Index of the current slot, and the number of elements it has yielded in this turn.
    at: usize,
    given: usize,
    ended: bool,
}

impl InterleaveCursor {
    fn next_slot(&mut self) {
        self.at = (self.at + 1) % self.slots.len();
        self.given = 0;
    }

    fn is_ahead(&self, slot: usize) -> Option<bool> {
        self.ahead.map(|n| slot < n)
    }

    /// Opens the dataset of the next element in the current slot.
    fn refill(&mut self) -> Result<()> {
        let before = self.up.save();
        let Some(element) = self.up.next() else {
            self.ended = true;
            return Ok(());
        };
        let opened = self.opener.open(element, self.is_ahead(self.at));
        match opened {
            Ok(cursor) => self.slots[self.at] = Some(InterleaveSlot { before, cursor }),
            Err(e) => {
                self.next_slot();
                return Err(e);
            }
        }
        Ok(())
    }

    fn reopen(&mut self, slot: usize, before: &IteratorState, inside: &IteratorState) -> Result<()> {
        let mut up = open(&self.node, &self.opener.run)?;
        up.restore(before)?;
        let element = up.next().ok_or_else(foreign)?;
        let mut cursor = self.opener.open(element, self.is_ahead(slot))?;
        cursor.restore(inside)?;
        *self.slots.get_mut(slot).ok_or_else(foreign)? =
            Some(InterleaveSlot { before: before.clone(), cursor });
        Ok(())
    }
}

impl ElementCursor for InterleaveCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            let Some(slot) = &mut self.slots[self.at] else {
                if !self.ended {
                    if let Err(e) = self.refill() {
                        return Some(Err(e));
                    }
                } else if self.slots.iter().all(Option::is_none) {
                    return None;
                }
                if self.slots[self.at].is_none() {
                    self.next_slot();
                }
                continue;
            };
            if let Some(item) = slot.cursor.next() {
                self.given += 1;
                if self.given == self.opener.block {
                    self.next_slot();
                }
                return Some(item);
            }
            self.slots[self.at] = None;
            self.next_slot();
        }
    }

    fn save(&self) -> IteratorState {
        let mut saved =
            IteratorState::at([self.at as u64, self.given as u64, self.ended as u64]).over(self.up.save());
        for (i, slot) in self.slots.iter().enumerate() {
            if let Some(slot) = slot {
                saved = saved
                    .over(IteratorState::at([i as u64]).over(slot.before.clone()).over(slot.cursor.save()));
            }
        }
        saved
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.up.restore(state.above(0)?)?;
        self.at = state.number(0)? as usize;
        self.given = state.number(1)? as usize;
        self.ended = state.number(2)? == 1;
        ensure!(self.at < self.slots.len() && self.given < self.opener.block, foreign());
        for slot in &state.inner[1..] {
            self.reopen(slot.number(0)? as usize, slot.above(0)?, slot.above(1)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, resumes, stream, values};
    use crate::{Dataset, Sample};

    /// Dataset `i` of `range(lens)` contains `100 i, 100 i + 1, …`.
    fn inner(
        lens: &'static [u64],
        streams: bool,
    ) -> impl Fn(Sample) -> Dataset + Clone + Send + Sync + 'static {
        move |s| {
            let i = s.fields().next().unwrap().1.get().unwrap().get(0).as_i64();
            let d = Dataset::range(lens[i as usize]).map(move |s| s.map("value", |x| x + (100 * i) as f64));
            if streams { d.filter(|_| true) } else { d }
        }
    }

    #[test]
    fn the_order_is_tensorflows() {
        // tf.data.Dataset.range(n).interleave(lambda i: range(lens[i]).map(lambda j: i * 100 + j), cycle, block)
        let cases: [(&[u64], usize, usize, &[i64]); 4] = [
            (&[3, 5, 1, 4, 2], 2, 2, &[0, 1, 100, 101, 2, 102, 103, 200, 104, 300, 301, 400, 401, 302, 303]),
            (&[2, 0, 4, 1, 3, 2], 3, 1, &[0, 200, 1, 300, 201, 202, 400, 500, 203, 401, 501, 402]),
            (&[4, 4, 4], 5, 3, &[0, 1, 2, 100, 101, 102, 200, 201, 202, 3, 103, 203]),
            (&[2, 3, 1, 2], 1, 2, &[0, 1, 100, 101, 102, 200, 300, 301]),
        ];
        for (lens, cycle, block, expected) in cases {
            for streams in [false, true] {
                for outer in [ints(lens.len() as i32), stream(lens.len() as i32)] {
                    let d = outer.interleave(inner(lens, streams), cycle, block);
                    assert_eq!(values(&d), expected);
                    for threads in [1, 2, 8, crate::AUTOTUNE] {
                        let parallel = outer.interleave_parallel(inner(lens, streams), cycle, block, threads);
                        assert_eq!(values(&parallel), expected);
                    }
                }
            }
        }
    }

    #[test]
    fn any_place_is_gone_to_with_any_number_of_threads() {
        let lens: &[u64] = &[3, 5, 0, 4, 2];
        for streams in [false, true] {
            let f = inner(lens, streams);
            resumes(&ints(5).flat_map(f.clone()));
            resumes(&stream(5).shuffle(3, 1).interleave(f.clone(), 2, 2).batch(3));
            resumes(&ints(5).shuffle(5, 1).interleave_parallel(f.clone(), 3, 2, 2).repeat_n(2));
            let with = |threads| ints(5).interleave_parallel(f.clone(), 3, 2, threads);
            let mut some = with(2).iter();
            (0..5).for_each(|_| drop(some.next()));
            let rest = crate::stage::test::values_of(with(1).debug().iter_at(&some.position()));
            assert_eq!(rest, values(&with(2))[5..]);
        }
    }

    #[test]
    fn wrong_arguments_and_failing_functions() {
        assert!(ints(2).interleave(inner(&[1, 1], false), 0, 1).iter().next().unwrap().is_err());
        let fails = ints(3).flat_map(|s| {
            let i = s.get("x")?.get(0).as_i64();
            if i == 1 { Dataset::list_files("/nothing/*") } else { Ok(Dataset::range(1)) }
        });
        let ok: Vec<bool> = fails.iter().map(|s| s.is_ok()).collect();
        assert_eq!(ok, [true, false, true]);
        resumes(&fails);
    }
}
