//! Stages of a pipeline, one file each, and the two ways to run one.
//!
//! A stage that can compute its element `i` alone offers [`Access`]; every chain of such stages seeks in
//! constant time and is computed by as many threads as one likes. All others offer a [`Cursor`], which walks.
//! [`open`] prefers the first.

pub(crate) mod batch;
pub(crate) mod cache;
pub(crate) mod cache_file;
pub(crate) mod concatenate;
pub(crate) mod enumerate;
pub(crate) mod filter;
pub(crate) mod group;
pub(crate) mod ignore_errors;
pub(crate) mod interleave;
pub(crate) mod map;
pub(crate) mod options;
pub(crate) mod pad;
pub(crate) mod prefetch;
pub(crate) mod random;
pub(crate) mod repeat;
pub(crate) mod resample;
pub(crate) mod scan;
pub(crate) mod select;
pub(crate) mod shard;
pub(crate) mod shuffle;
pub(crate) mod skip;
pub(crate) mod take;
pub(crate) mod take_while;
pub(crate) mod unbatch;
pub(crate) mod unique;
pub(crate) mod window;
pub(crate) mod zip;

use crate::dataset::Cardinality;
use crate::place::{Place, foreign};
use crate::pump::Pump;
use crate::run::Run;
use crate::sample::{ElementSpec, Sample};
use std::sync::Arc;
use systole_base::{Error, ErrorKind, Result};

/// A stage that others build on.
pub type Node = Arc<dyn Stage>;

/// One stage with everything above it: an immutable description.
pub trait Stage: Send + Sync {
    /// The stage alone, as it would be written: `batch(128)`.
    fn label(&self) -> String;

    /// The stages that it takes elements from.
    fn inputs(&self) -> Vec<Node> {
        Vec::new()
    }

    /// The chain up to here, as it would be written.
    fn name(&self) -> String {
        chain(&self.inputs(), self.label())
    }

    /// Elements in one epoch.
    fn cardinality(&self) -> Cardinality;

    /// Random access to the elements of an epoch, where the stage and all above it can; errors on wrong arguments.
    fn access(&self, _run: &Run) -> Result<Option<Box<dyn Access>>> {
        Ok(None)
    }

    /// The elements of an epoch in order; errors on wrong arguments. Only called when there is no access.
    fn stream(&self, _run: &Run) -> Result<Box<dyn Cursor>> {
        Err(Error::new(ErrorKind::Bug, format!("{} offers neither access nor a stream", self.label())))
    }

    /// Names and types of the first element.
    fn spec(&self) -> Result<ElementSpec> {
        first_spec(self, &Run::inspecting())
    }

    /// Threads that whoever walks this stage's [`Access`] should use: the most that any stage asked for whose
    /// work is done there.
    fn threads(&self) -> Option<Threads> {
        self.inputs().iter().filter_map(|n| n.threads()).max()
    }

    /// Whether threads compute the elements of its [`Stage::stream`] ahead, as far as AUTOTUNE finds good.
    fn is_ahead(&self, _run: &Run) -> bool {
        false
    }

    /// Where this stage is a function computed by threads: the stage above, the function, the threads. What comes below
    /// may then do its own work on the same threads.
    fn mapped(&self) -> Option<(Node, map::MapFn, Threads)> {
        None
    }

    /// Whether its elements differ from epoch to epoch by chance (a cache below would freeze that).
    fn is_random(&self) -> bool {
        self.inputs().iter().any(|n| n.is_random())
    }

    /// What a user should know about the chain up to here that is no error.
    fn warnings(&self) -> Vec<String> {
        warnings_of(&self.inputs())
    }

    /// Options that [`crate::Dataset::with_options`] put here.
    fn options(&self) -> Option<&crate::run::Options> {
        None
    }
}

/// [`Stage::name`] of a stage with these inputs: one function, not one for each stage.
fn chain(inputs: &[Node], label: String) -> String {
    match inputs {
        [] => label,
        [up] => format!("{}.{label}", up.name()),
        many => {
            let names: Vec<String> = many.iter().map(|n| n.name()).collect();
            format!("{label}({})", names.join(", "))
        }
    }
}

fn warnings_of(inputs: &[Node]) -> Vec<String> {
    inputs.iter().flat_map(|n| n.warnings()).collect()
}

/// How many threads a stage wants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Threads {
    /// So many.
    Fixed(usize),
    /// As many as pay, within the core budget.
    Auto,
}

impl Threads {
    /// A number, or [`crate::AUTOTUNE`].
    pub fn of(n: usize) -> Threads {
        if n == crate::AUTOTUNE { Threads::Auto } else { Threads::Fixed(n) }
    }
}

/// Which stage of a chain something belongs to.
pub(crate) struct Owner {
    pub address: usize,
    pub label: String,
}

impl Owner {
    pub fn of(stage: &(impl Stage + ?Sized)) -> Owner {
        Owner { address: std::ptr::from_ref(stage).cast::<()>() as usize, label: stage.label() }
    }
}

fn first_spec(stage: &(impl Stage + ?Sized), run: &Run) -> Result<ElementSpec> {
    let mut cursor = match stage.access(run)? {
        Some(access) => Box::new(Walk { access, at: 0 }),
        None => stage.stream(run)?,
    };
    match cursor.next() {
        Some(first) => first?.spec(),
        None => Err(Error::new(ErrorKind::Data, format!("{} has no elements", stage.name()))
            .hint("check the source, and what filter, take and skip leave of it")),
    }
}

/// Reads any element of one epoch.
pub trait Access: Send {
    /// Number of elements; `None` when endless.
    fn len(&self) -> Option<u64>;

    /// True when there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Element `index`, which is below the length. Not for the same index twice with different results.
    fn get(&mut self, index: u64) -> Result<Sample>;
}

/// Walks the elements of one epoch.
pub trait Cursor: Send {
    /// The next element, or an error about it; `None` at the end.
    fn next(&mut self) -> Option<Result<Sample>>;

    /// Leaves out up to `n` elements and says how many there were. Errors count as elements, as in `next`.
    fn skip(&mut self, n: u64) -> u64 {
        (0..n).take_while(|_| self.next().is_some()).count() as u64
    }

    /// The place before the next element.
    fn save(&self) -> Place;

    /// Goes to a place that a cursor of the same stage was at. Only for a cursor that was just opened.
    fn restore(&mut self, place: &Place) -> Result<()>;
}

/// Goes to a place that is the number of elements before it, for stages whose state only their elements give.
fn replay(cursor: &mut dyn Cursor, place: &Place) -> Result<()> {
    let taken = place.number(0)?;
    match cursor.skip(taken) {
        skipped if skipped < taken => Err(foreign()),
        _ => Ok(()),
    }
}

/// A stage's elements in order: by access where there is any, with the threads that were asked for.
pub fn open(node: &Node, run: &Run) -> Result<Box<dyn Cursor>> {
    match access(node, run)? {
        Some(first) => match node.threads() {
            Some(threads) if run.has_threads() => {
                let owner = Owner::of(&**node);
                let gauge = run.tuner().gauge(&owner, threads, None);
                Ok(Box::new(Pump::over_access(owner, node.clone(), run.clone(), first, gauge)))
            }
            _ => Ok(Box::new(Walk { access: first, at: 0 })),
        },
        None => Ok(run.watch_cursor(node, node.stream(run)?)),
    }
}

/// A stage's random access, watched where the run is being measured.
pub fn access(node: &Node, run: &Run) -> Result<Option<Box<dyn Access>>> {
    Ok(node.access(run)?.map(|access| run.watch_access(node, access)))
}

/// The cursor of anything with access.
pub(crate) struct Walk {
    pub access: Box<dyn Access>,
    pub at: u64,
}

impl Cursor for Walk {
    fn next(&mut self) -> Option<Result<Sample>> {
        if self.access.len().is_some_and(|n| self.at >= n) {
            return None;
        }
        let index = self.at;
        self.at = index.saturating_add(1);
        Some(self.access.get(index))
    }

    fn skip(&mut self, n: u64) -> u64 {
        let n = n.min(self.access.len().unwrap_or(u64::MAX) - self.at);
        self.at += n;
        n
    }

    fn save(&self) -> Place {
        Place::at([self.at])
    }

    fn restore(&mut self, place: &Place) -> Result<()> {
        self.at = place.number(0)?;
        match self.access.len() {
            Some(n) if self.at > n => Err(foreign()),
            // A run without order left gaps, which only its threads know how to fill.
            _ if place.numbers.len() > 1 => Err(foreign()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod test {
    //! What the tests of all stages share.

    use crate::{Cardinality, Dataset, HostArray, Position, Sample};
    use systole_base::{DType, Literal};

    /// `x: i32[]` = 0 … n-1, with random access.
    pub fn ints(n: i32) -> Dataset {
        let x = Literal::from_slice([n as usize], &(0..n).collect::<Vec<_>>()).unwrap();
        Dataset::from_tensor_slices([("x", x)]).unwrap()
    }

    /// The same elements without random access.
    pub fn stream(n: i32) -> Dataset {
        Dataset::from_generator(move || {
            (0..n).map(|i| Ok(Sample::new([("x", HostArray::scalar(DType::I32, i.into()))])))
        })
    }

    /// All elements of all first fields, flattened.
    pub fn values(d: &Dataset) -> Vec<i64> {
        values_of(d.iter())
    }

    pub fn values_of(iter: impl Iterator<Item = systole_base::Result<Sample>>) -> Vec<i64> {
        let first = |s: Sample| s.fields().next().unwrap().1.get().unwrap().to_f64s();
        iter.flat_map(|s| first(s.unwrap())).map(|v| v as i64).collect()
    }

    /// Every element as text, errors included.
    fn shown(iter: impl Iterator<Item = systole_base::Result<Sample>>, n: usize) -> Vec<String> {
        let show =
            |s: Sample| s.fields().map(|(k, v)| format!("{k}={:?};", v.get().unwrap())).collect::<String>();
        iter.take(n).map(|s| s.map_or_else(|e| e.to_string(), show)).collect()
    }

    /// Snapshot before each element, restore each: the remainder must be identical, and the cardinality true.
    pub fn resumes(d: &Dataset) {
        for epoch in [0, 3] {
            let limit = 40;
            let whole = shown(d.iter_epoch(epoch), limit);
            assert!(!whole.is_empty(), "{d:?}: nothing to test");
            match d.cardinality() {
                Cardinality::Finite(n) => assert_eq!(whole.len() as u64, n.min(limit as u64), "{d:?}"),
                Cardinality::Infinite => assert_eq!(whole.len(), limit, "{d:?}"),
                Cardinality::Unknown => {}
            }
            let mut iter = d.iter_epoch(epoch);
            for taken in 0..=whole.len() {
                let position: Position = iter.position().to_string().parse().unwrap();
                assert_eq!((position.epoch, position.taken), (epoch, taken as u64));
                let rest = shown(d.iter_at(&position), limit - taken);
                assert_eq!(rest, whole[taken..], "{d:?} at {position}");
                let counted = Position::new(epoch, taken as u64);
                let rest = shown(d.iter_at(&counted), limit - taken);
                assert_eq!(rest, whole[taken..], "{d:?} at {counted}");
                iter.next();
            }
        }
    }

    #[test]
    fn every_pipeline_resumes_before_each_element() {
        for source in [ints(11), stream(11), Dataset::range(11)] {
            let odd = |s: &Sample| s.fields().next().unwrap().1.get().unwrap().get(0).as_i64() % 2 == 1;
            let double = |s: Sample| {
                let name = s.names().next().unwrap().to_string();
                s.map(&name, |x| x * 2)
            };
            let pipelines = [
                source.clone(),
                source.map(double).shuffle(100, 7).repeat().batch(4),
                source.shuffle(3, 7).repeat_n(2).batch(3),
                source.repeat_n(2).shuffle(5, 1).map(double),
                source.repeat().shuffle(5, 1).take(23),
                source.filter(odd).shuffle(4, 2).repeat_n(3).batch(2),
                source.filter(odd).repeat(),
                source.shuffle(11, 3).take(7).skip(2).repeat_n(2),
                source.shuffle(11, 3).cache().shuffle(11, 4).repeat(),
                source.filter(odd).cache().repeat_n(3),
                source.batch_drop_remainder(3).repeat().unbatch(),
                source.batch(4).unbatch().shuffle(6, 5).batch(2),
                source.enumerate().shuffle(11, 9).repeat_n(2).enumerate_again(),
                Dataset::zip([source.clone(), source.shuffle(4, 1).rename_first("y")]).repeat(),
                source.skip(3).repeat().skip(20).batch_drop_remainder(5),
                source.shuffle(4, 8).repeat_n(2).repeat_n(2),
                // Walked, not seeked, but of known length.
                source.prefetch(1).shuffle(4, 1).repeat().skip(14).take(20),
                source.prefetch(2).repeat_n(3).skip(4).batch(3),
                source.map(|s| s.map("nothing", |x| x)).repeat_n(2).batch(3),
            ];
            for d in &pipelines {
                resumes(d);
                resumes(&d.prefetch(2));
                resumes(&d.prefetch(1).map(|s| s).prefetch(3));
            }
        }
    }

    #[test]
    fn prefetch_depth_does_not_change_the_stream() {
        let d = ints(23).shuffle(9, 4).repeat().batch(5);
        let plain = values_of(d.iter().take(30));
        for depth in [0, 1, 8, 32, crate::AUTOTUNE] {
            assert_eq!(values_of(d.prefetch(depth).iter().take(30)), plain, "depth {depth}");
        }
    }

    impl Dataset {
        fn rename_first(&self, to: &'static str) -> Dataset {
            self.map(move |s: Sample| {
                let name = s.names().next().unwrap().to_string();
                s.rename(&name, to)
            })
        }

        fn enumerate_again(&self) -> Dataset {
            self.map(|s: Sample| s.rename("index", "inner")).enumerate()
        }
    }
}
