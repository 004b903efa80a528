//! [`Dataset`]: description of a pipeline; [`DatasetIter`]: iterator of one run.
//!
//! Each stage is in its own file under `stage/` or `source/`, with the method that adds it.

use super::autotune::PipelineTuning;
use super::cardinality::Cardinality;
use super::cursor::ElementCursor;
use super::position::PipelinePosition;
use super::report::PipelineReport;
use super::run::PipelineRun;
use super::run_observer::RunObserver;
use super::stage::{DatasetStage, StageNode, open, options_of, stages_of};
use crate::sample::{ElementSpec, Sample};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systole_base::{Error, Result, err};

/// Input pipeline: an immutable description, cheap to clone, safe to share between threads.
///
/// Every method returns a new pipeline; nothing runs until [`Dataset::iter`]. An invalid argument (a batch size of 0)
/// is an error returned by the first element of the iteration, or by [`Dataset::element_spec`].
#[derive(Clone)]
pub struct Dataset {
    node: StageNode,
}

impl Dataset {
    /// Creates a pipeline that ends in a custom stage.
    pub fn new(stage: impl DatasetStage + 'static) -> Dataset {
        Dataset { node: Arc::new(stage) }
    }

    /// Number of elements of the pipeline in one epoch.
    pub fn cardinality(&self) -> Cardinality {
        self.node.cardinality()
    }

    /// Returns names and types of the first element, computing as little as possible.
    ///
    /// # Errors
    /// Errors of the first element; an empty dataset.
    pub fn element_spec(&self) -> Result<ElementSpec> {
        self.node.spec()
    }

    /// Runs the pipeline from epoch 0.
    pub fn iter(&self) -> DatasetIter {
        self.iter_epoch(0)
    }

    /// Runs the pipeline from a given epoch, for training loops that iterate once per epoch.
    ///
    /// After a `repeat_n(k)`, epoch `e` is rounds `e·k … e·k + k-1` of the repeated part; after an endless `repeat` it
    /// starts at round `e`.
    pub fn iter_epoch(&self, epoch: u64) -> DatasetIter {
        self.run(epoch, None)
    }

    pub(crate) fn run(&self, epoch: u64, watch: Option<RunObserver>) -> DatasetIter {
        let run = PipelineRun::new(stages_of(&self.node), options_of(&self.node), epoch, watch);
        let cursor = open(&self.node, &run).map_err(Some);
        DatasetIter { cursor, epoch, taken: 0, run, waited: Duration::ZERO, started: Instant::now() }
    }

    /// Resumes an earlier run of the same pipeline: yields exactly the elements that it would have yielded next.
    ///
    /// Takes constant time if every stage can seek (slices, map, shuffle, repeat, batch, …); otherwise the earlier
    /// elements are produced again and dropped.
    pub fn iter_at(&self, position: &PipelinePosition) -> DatasetIter {
        let mut iter = self.iter_epoch(position.epoch);
        iter.go_to(position);
        iter
    }

    /// Returns warnings about this pipeline, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        self.node.warnings()
    }

    pub(crate) fn into_node(self) -> StageNode {
        self.node
    }

    pub(crate) fn then<S: DatasetStage + 'static>(&self, stage: impl FnOnce(StageNode) -> S) -> Dataset {
        Dataset::new(stage(self.node.clone()))
    }
}

/// Formats the stages in order, for example `range(10).shuffle(10).batch(3)`.
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

/// Iterator of one run of a pipeline. Yields elements or errors about them; an error ends the run only if no more
/// elements can follow.
pub struct DatasetIter {
    /// `Err(None)`: finished.
    cursor: Result<Box<dyn ElementCursor>, Option<Error>>,
    epoch: u64,
    /// Number of elements yielded (including errors).
    taken: u64,
    run: PipelineRun,
    waited: Duration,
    started: Instant,
}

impl DatasetIter {
    /// Returns the position before the next element, for [`Dataset::iter_at`].
    ///
    /// It contains only integers: buffered elements are read again. A stage that shuffles a stream through a buffer
    /// stores one number for each buffered element, other stages a few.
    pub fn position(&self) -> PipelinePosition {
        let state = self.cursor.as_ref().ok().map(|c| c.save());
        PipelinePosition { epoch: self.epoch, taken: self.taken, state }
    }

    /// Whether the whole pipeline runs on the calling thread, as set by [`Dataset::debug`].
    pub fn runs_in_place(&self) -> bool {
        !self.run.has_threads()
    }

    /// Time that the consumer waited for elements.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the statistics of the run's stages so far.
    pub fn report(&self) -> PipelineReport {
        PipelineReport::of(&self.run, self.taken, self.waited, self.started.elapsed())
    }

    /// Returns the [`PipelineReport`] as text: what was tuned and why.
    pub fn explain(&self) -> String {
        self.report().to_string()
    }

    /// Returns the tuned sizes, to be fixed with `DatasetOptions::tuning`.
    pub fn freeze(&self) -> PipelineTuning {
        self.run.tuner().tuning()
    }

    pub(crate) fn go_to(&mut self, position: &PipelinePosition) {
        self.taken = position.taken;
        let Ok(cursor) = &mut self.cursor else { return };
        let went = match &position.state {
            Some(state) => cursor.restore(state).map_err(|e| e.at(format!("position {position}"))),
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

fn past_the_end(position: &PipelinePosition, elements: u64) -> Error {
    err!(Data, "position {position} is beyond the end of the data")
        .because(format!("epoch {} has {elements} elements", position.epoch))
        .hint("resume with the same pipeline and data")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::test::{ints, values};
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    #[test]
    fn past_the_end_is_an_error() {
        let d = Dataset::range(5);
        assert_eq!(d.iter_at(&PipelinePosition::new(0, 5)).count(), 0);
        let mut late = d.iter_at(&PipelinePosition::new(0, 6));
        assert_error(&late.next().unwrap().unwrap_err(), ErrorKind::Data, &["6", "5"]);
        assert!(late.next().is_none());
    }

    #[test]
    fn any_place_is_reached_at_once_where_all_can_seek() {
        let d = ints(1000).shuffle(1000, 3).repeat().skip(7).enumerate().batch(32).prefetch(2);
        for (epoch, taken) in [(0, 1_000_000_000_000), (u64::MAX, 5), (3, u64::MAX - 1)] {
            let batch = d.iter_at(&PipelinePosition::new(epoch, taken)).next().unwrap().unwrap();
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
