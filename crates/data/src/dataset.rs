//! [`Dataset`]: the description of a pipeline; [`DatasetIter`]: one run of it.
//!
//! What a stage does lies in its own file under `stage/`; here is only the chain and its outer behaviour.

use crate::place::Position;
use crate::report::Report;
use crate::run::{Options, Run};
use crate::sample::{ElementSpec, IntoSample, Sample};
use crate::stage::batch::{Batching, Share};
use crate::stage::shuffle::{Shuffle, ShuffleStage};
use crate::stage::{self, Cursor, Node, Stage, Threads};
use crate::watch::Watch;
use crate::{HostArray, source};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systole_base::{Error, ErrorKind, Literal, Result};

/// Lets a stage choose its own size, as in tf.data.
pub const AUTOTUNE: usize = usize::MAX;

/// How many elements a pipeline yields in one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cardinality {
    /// This many.
    Finite(u64),
    /// It never ends.
    Infinite,
    /// Not known without running it (generators, filters).
    Unknown,
}

impl Cardinality {
    /// The number when it is known and finite.
    pub fn finite(self) -> Option<u64> {
        match self {
            Cardinality::Finite(n) => Some(n),
            _ => None,
        }
    }

    /// What is left when only running tells how many elements each one becomes.
    pub(crate) fn unknown_unless_empty(self) -> Cardinality {
        match self {
            Cardinality::Finite(0) => self,
            _ => Cardinality::Unknown,
        }
    }

    /// Changes a finite number.
    pub(crate) fn map(self, f: impl FnOnce(u64) -> u64) -> Cardinality {
        match self {
            Cardinality::Finite(n) => Cardinality::Finite(f(n)),
            other => other,
        }
    }
}

/// An input pipeline: an immutable description, cheap to clone, safe to share between threads.
///
/// Every method gives a new pipeline; nothing runs until [`Dataset::iter`]. A wrong argument (a batch size of
/// 0) is an error that the first element of the iteration, or [`Dataset::element_spec`], returns.
#[derive(Clone)]
pub struct Dataset {
    node: Node,
}

impl Dataset {
    /// A pipeline that ends in a stage of your own.
    pub fn new(stage: impl Stage + 'static) -> Dataset {
        Dataset { node: Arc::new(stage) }
    }

    /// `name: T[N, …] → N samples of name: T[…]`: slices along the first dimension, without copying the whole.
    ///
    /// # Errors
    /// When there is no field, a field has rank 0, or the first dimensions differ (names both).
    pub fn from_tensor_slices<N: Into<Arc<str>>>(
        fields: impl IntoIterator<Item = (N, Literal)>,
    ) -> Result<Dataset> {
        let fields: Vec<(Arc<str>, Literal)> = fields.into_iter().map(|(n, x)| (n.into(), x)).collect();
        let names: Vec<&str> = fields.iter().map(|(n, _)| &**n).collect();
        let source = format!("from_tensor_slices({})", names.join(", "));
        Ok(Dataset::new(source::slices::Slices::new(source.into(), fields)?))
    }

    /// [`Dataset::from_tensor_slices`] under a name of its own, which error messages then use.
    pub fn from_named_slices<N: Into<Arc<str>>>(
        source: impl Into<Arc<str>>,
        fields: impl IntoIterator<Item = (N, Literal)>,
    ) -> Result<Dataset> {
        let fields = fields.into_iter().map(|(n, x)| (n.into(), x)).collect();
        Ok(Dataset::new(source::slices::Slices::new(source.into(), fields)?))
    }

    /// The samples that `start` yields; it is called anew for each epoch and must yield the same each time.
    pub fn from_generator<I>(start: impl Fn() -> I + Send + Sync + 'static) -> Dataset
    where
        I: Iterator<Item = Result<Sample>> + Send + 'static,
    {
        Dataset::new(source::generator::Generator::new(move || Box::new(start())))
    }

    /// `0, 1, … n-1` as samples of one field, `value: i64[]`.
    pub fn range(n: u64) -> Dataset {
        Dataset::new(source::range::Range { n })
    }

    /// Applies a function to each sample; it may return a [`Sample`] or a `Result<Sample>`.
    pub fn map<R: IntoSample>(&self, f: impl Fn(Sample) -> R + Send + Sync + 'static) -> Dataset {
        self.then(|up| stage::map::Map { up, f: Arc::new(move |s| f(s).into_sample()), threads: None })
    }

    /// [`Dataset::map`] on `threads` threads ([`AUTOTUNE`]: as many as pay), the elements in their order.
    ///
    /// Over random access the threads compute whole elements of the stages below too, up to the next stage that
    /// only walks, so that batches are put together side by side.
    pub fn map_parallel<R: IntoSample>(
        &self,
        f: impl Fn(Sample) -> R + Send + Sync + 'static,
        threads: usize,
    ) -> Dataset {
        let threads = Some(Threads::of(threads));
        self.then(|up| stage::map::Map { up, f: Arc::new(move |s| f(s).into_sample()), threads })
    }

    /// Keeps the samples for which the predicate holds. Resuming replays the elements before the place.
    pub fn filter(&self, keep: impl Fn(&Sample) -> bool + Send + Sync + 'static) -> Dataset {
        self.then(|up| stage::filter::Filter { up, keep: Arc::new(keep) })
    }

    /// At most the first `n` elements.
    pub fn take(&self, n: u64) -> Dataset {
        self.then(|up| stage::take::Take { up, n })
    }

    /// All but the first `n` elements.
    pub fn skip(&self, n: u64) -> Dataset {
        self.then(|up| stage::skip::Skip { up, n })
    }

    /// A random order that is a pure function of (seed, epoch, index), another one in each epoch.
    ///
    /// As in tf.data a buffer of `buffer_size` elements is filled and each output drawn from it; with
    /// `buffer_size` at least the number of elements that is a uniform permutation. Over sources with random
    /// access no element is copied or computed early: only indices are shuffled.
    pub fn shuffle(&self, buffer_size: usize, seed: u64) -> Dataset {
        self.shuffle_with(Shuffle { buffer_size, seed, reshuffle_each_iteration: true })
    }

    /// [`Dataset::shuffle`] with every option.
    pub fn shuffle_with(&self, options: Shuffle) -> Dataset {
        self.then(|up| ShuffleStage::new(up, options))
    }

    /// Starts again at each end, without end. Each round is the next epoch of the stages above.
    pub fn repeat(&self) -> Dataset {
        self.then(|up| stage::repeat::Repeat { up, count: None })
    }

    /// `count` rounds; each is the next epoch of the stages above.
    pub fn repeat_n(&self, count: u64) -> Dataset {
        self.then(|up| stage::repeat::Repeat { up, count: Some(count) })
    }

    /// `name: T[…] → name: T[n, …]`; the last batch may be smaller.
    pub fn batch(&self, n: usize) -> Dataset {
        self.batch_share(n, None)
    }

    /// As [`Dataset::batch`], where only some rows of each batch are wanted: those of one of several hosts. Shapes and places
    /// are those of whole batches. Where elements can be had one by one, only wanted ones are read and computed, and the
    /// other rows are zeros; from a stream (TFRecord files, `filter`, …) all are. No stage below may mix rows.
    ///
    /// ```
    /// use systole_data::{Dataset, Share};
    /// let last = Dataset::range(8).batch_share(4, Some(Share { parts: 1..2, of: 2 }));
    /// let batch = last.iter().next().unwrap()?;
    /// assert_eq!(batch.get("value")?.to_f32s(), [0.0, 0.0, 2.0, 3.0]);
    /// # Ok::<(), systole_base::Error>(())
    /// ```
    pub fn batch_share(&self, n: usize, share: Option<Share>) -> Dataset {
        let batching = Batching { size: n, drop_remainder: false };
        self.then(|up| stage::batch::Batch { up, batching, share })
    }

    /// `name: T[…] → name: T[n, …]`; elements that do not fill a batch are dropped.
    pub fn batch_drop_remainder(&self, n: usize) -> Dataset {
        let batching = Batching { size: n, drop_remainder: true };
        self.then(|up| stage::batch::Batch { up, batching, share: None })
    }

    /// `name: T[n, …] → n samples of name: T[…]`.
    pub fn unbatch(&self) -> Dataset {
        self.then(|up| stage::unbatch::Unbatch { up })
    }

    /// Adds a field `index: i64[]` that counts the elements of the epoch from 0.
    pub fn enumerate(&self) -> Dataset {
        self.then(|up| stage::enumerate::Enumerate { up })
    }

    /// Merges the fields of the datasets' elements, side by side; ends with the shortest.
    pub fn zip(datasets: impl IntoIterator<Item = Dataset>) -> Dataset {
        Dataset::new(stage::zip::Zip { up: datasets.into_iter().map(|d| d.node).collect() })
    }

    /// Keeps the elements of the first epoch in memory and yields them in every epoch.
    pub fn cache(&self) -> Dataset {
        self.then(stage::cache::Cache::new)
    }

    /// Computes up to `n` elements ahead on threads of their own ([`AUTOTUNE`]: tuned). The stream does not change.
    ///
    /// The threads start with the first element and end soon after the iterator is dropped. `n = 0` does nothing.
    pub fn prefetch(&self, n: usize) -> Dataset {
        self.then(|up| stage::prefetch::Prefetch { up, depth: n })
    }

    /// How many elements one epoch has.
    pub fn cardinality(&self) -> Cardinality {
        self.node.cardinality()
    }

    /// Names and types of the first element. Computes as little as it can; what it computes is thrown away.
    ///
    /// # Errors
    /// Those of the first element; an empty dataset.
    pub fn element_spec(&self) -> Result<ElementSpec> {
        self.node.spec()
    }

    /// Runs the pipeline from epoch 0.
    pub fn iter(&self) -> DatasetIter {
        self.iter_epoch(0)
    }

    /// Runs the pipeline from a given epoch: for training loops that iterate anew in each of their epochs.
    ///
    /// Below a `repeat_n(k)` epoch `e` of the whole is rounds `e·k … e·k + k-1` of what is repeated; below an
    /// endless `repeat` it starts at round `e`.
    pub fn iter_epoch(&self, epoch: u64) -> DatasetIter {
        self.run(epoch, None)
    }

    pub(crate) fn run(&self, epoch: u64, watch: Option<Watch>) -> DatasetIter {
        let run = Run::new(&self.node, epoch, watch);
        let cursor = stage::open(&self.node, &run).map_err(Some);
        DatasetIter { cursor, epoch, taken: 0, run, waited: Duration::ZERO, started: Instant::now() }
    }

    /// Continues where an earlier run of the same pipeline stood: yields exactly what that one would have next.
    ///
    /// Takes constant time where every stage can seek (slices, map, shuffle, repeat, batch, …); otherwise the
    /// elements before are produced again and dropped.
    pub fn iter_at(&self, position: &Position) -> DatasetIter {
        let mut iter = self.iter_epoch(position.epoch);
        iter.go_to(position);
        iter
    }

    /// How the whole pipeline is run; the elements stay the same unless it gives up their order.
    pub fn with_options(&self, options: Options) -> Dataset {
        self.then(|up| stage::options::WithOptions { up, options })
    }

    /// False: parallel stages hand out elements as they are ready, in no fixed order.
    pub fn deterministic(&self, deterministic: bool) -> Dataset {
        self.with_options(Options { deterministic: Some(deterministic), ..Options::default() })
    }

    /// The same pipeline on the calling thread alone, for a debugger: same elements, same order.
    pub fn debug(&self) -> Dataset {
        self.with_options(Options { debug: Some(true), ..Options::default() })
    }

    /// What a user should know about this pipeline though it is no error, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        self.node.warnings()
    }

    pub(crate) fn into_node(self) -> Node {
        self.node
    }

    pub(crate) fn then<S: Stage + 'static>(&self, stage: impl FnOnce(Node) -> S) -> Dataset {
        Dataset::new(stage(self.node.clone()))
    }
}

/// The stages in order, for example `range(10).shuffle(10).batch(3)`.
impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.node.name())
    }
}

impl IntoIterator for &Dataset {
    type Item = Result<Sample>;
    type IntoIter = DatasetIter;
    fn into_iter(self) -> DatasetIter {
        self.iter()
    }
}

/// One run of a pipeline. Yields elements or errors about them; an error does not end the run unless no more
/// elements can follow it.
pub struct DatasetIter {
    /// `Err(None)`: over.
    cursor: Result<Box<dyn Cursor>, Option<Error>>,
    epoch: u64,
    /// Elements yielded (errors count).
    taken: u64,
    run: Run,
    waited: Duration,
    started: Instant,
}

impl DatasetIter {
    /// The place before the next element, for [`Dataset::iter_at`].
    ///
    /// It holds integers only: what stages have buffered is read again. Where a stage shuffles a stream through a
    /// buffer it has one number for each element in the buffer, otherwise a few.
    pub fn position(&self) -> Position {
        let place = self.cursor.as_ref().ok().map(|c| c.save());
        Position { epoch: self.epoch, taken: self.taken, place }
    }

    /// Whether everything runs on the thread that takes the elements, as [`Dataset::debug`] asks.
    pub fn runs_in_place(&self) -> bool {
        !self.run.has_threads()
    }

    /// Time that the taker of the elements spent waiting for them.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// What the run's stages did and why, so far.
    pub fn report(&self) -> Report {
        Report::of(&self.run, self.taken, self.waited, self.started.elapsed())
    }

    /// What was tuned and why, in plain words; [`Report`] as text.
    pub fn explain(&self) -> String {
        self.report().to_string()
    }

    /// The sizes that were found, to be used as they are by [`Options::tuning`].
    pub fn freeze(&self) -> crate::Tuning {
        self.run.tuner().tuning()
    }

    pub(crate) fn go_to(&mut self, position: &Position) {
        self.taken = position.taken;
        let Ok(cursor) = &mut self.cursor else { return };
        let went = match &position.place {
            Some(place) => cursor.restore(place).map_err(|e| e.at(format!("position {position}"))),
            None => match cursor.skip(position.taken) {
                skipped if skipped < position.taken => Err(past_the_end(position, skipped)),
                _ => Ok(()),
            },
        };
        if let Err(e) = went {
            self.cursor = Err(Some(e));
        }
    }
}

fn past_the_end(position: &Position, elements: u64) -> Error {
    Error::new(ErrorKind::Data, format!("position {position} is past the end of the data"))
        .because(format!("epoch {} has {elements} elements", position.epoch))
        .hint("resume with the pipeline and the data that the position was taken from")
}

impl Iterator for DatasetIter {
    type Item = Result<Sample>;
    fn next(&mut self) -> Option<Result<Sample>> {
        let cursor = match &mut self.cursor {
            Ok(cursor) => cursor,
            Err(error) => return error.take().map(Err),
        };
        let start = Instant::now();
        let item = cursor.next();
        self.waited += start.elapsed();
        self.taken = self.taken.saturating_add(item.is_some() as u64);
        item
    }
}

// Arrays are made of literals, so that plain data can be given where a field's array is wanted.
impl From<&Literal> for HostArray {
    fn from(x: &Literal) -> HostArray {
        x.clone().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::test::{ints, values};

    #[test]
    fn past_the_end_is_an_error() {
        let d = Dataset::range(5);
        assert_eq!(d.iter_at(&Position::new(0, 5)).count(), 0);
        let mut late = d.iter_at(&Position::new(0, 6));
        assert!(late.next().unwrap().unwrap_err().to_string().contains("past the end"));
        assert!(late.next().is_none());
    }

    #[test]
    fn any_place_is_reached_at_once_where_all_can_seek() {
        let d = ints(1000).shuffle(1000, 3).repeat().skip(7).enumerate().batch(32).prefetch(2);
        for (epoch, taken) in [(0, 1_000_000_000_000), (u64::MAX, 5), (3, u64::MAX - 1)] {
            let batch = d.iter_at(&Position::new(epoch, taken)).next().unwrap().unwrap();
            assert_eq!(batch.get("x").unwrap().shape().dims(), [32]);
        }
    }

    #[test]
    fn wrong_arguments_surface_as_the_first_element_and_in_the_spec() {
        for d in [Dataset::range(5).batch(0), Dataset::range(5).shuffle(0, 1), Dataset::zip([])] {
            for d in [d.clone(), d.repeat().prefetch(2), d.map(|s| s).take(3)] {
                let mut iter = d.iter();
                let e = iter.next().unwrap().unwrap_err();
                assert!(e.hint_text().is_some() && e.kind() == ErrorKind::Config, "{d:?}: {e}");
                assert!(iter.next().is_none(), "{d:?}");
                assert!(d.element_spec().is_err(), "{d:?}");
            }
        }
    }

    #[test]
    fn errors_name_element_and_source_and_the_run_goes_on() {
        let d = ints(4).map(|s| {
            let odd = s.get("x").unwrap().get(0).as_i64() == 2;
            if odd { s.map("x", |x| x.reshape([7])) } else { s }
        });
        let items: Vec<_> = d.iter().collect();
        assert_eq!(items.len(), 4);
        let e = items[2].as_ref().unwrap_err().to_string();
        assert!(e.contains("element 2 of from_tensor_slices(x)") && e.contains("field x"), "{e}");
        let batches: Vec<_> = d.shuffle(4, 1).batch(2).iter().map(|b| b.is_err()).collect();
        assert_eq!(batches.iter().filter(|&&b| b).count(), 1);
    }

    #[test]
    fn a_dataset_is_shared_between_threads() {
        fn send_sync<T: Send + Sync>(_: &T) {}
        let d = Dataset::range(3);
        send_sync(&d);
        fn send<T: Send>(_: &T) {}
        send(&d.iter());
        assert_eq!(values(&d), [0, 1, 2]);
        assert_eq!(format!("{:?}", d.shuffle(9, 1).batch(2)), "range(3).shuffle(9).batch(2)");
    }
}
