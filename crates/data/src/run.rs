//! [`Run`]: what the stages of one running pipeline share: the epoch, the options, the memory budget, the tuner and
//! whoever is watching. [`Options`]: how a pipeline is run, as tf.data's `with_options`.

use crate::autotune::{Budget, Tuner, Tuning, free_memory, lock};
use crate::stage::{Access, Cursor, Node};
use crate::watch::Watch;
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;

/// How a pipeline is run. What is `None` keeps its default; of several [`crate::Dataset::with_options`] in a chain
/// the last one that says something counts.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// False: parallel stages hand out elements as they are ready, which is faster and has no fixed order.
    /// Default: true.
    pub deterministic: Option<bool>,
    /// True: everything runs on the calling thread, in place, so that a debugger and a backtrace show all of it.
    /// The elements are the same. Default: false.
    pub debug: Option<bool>,
    /// Bytes that elements computed ahead may take, all stages together. Default: a quarter of the free memory.
    pub ram_budget: Option<usize>,
    /// Threads that stages with [`crate::AUTOTUNE`] may use, all together. Default: all cores but one.
    pub core_budget: Option<usize>,
    /// Sizes that an earlier run found ([`crate::DatasetIter::freeze`]), used as they are instead of being tuned.
    pub tuning: Option<Tuning>,
    /// Measures the time of every stage, for [`crate::DatasetIter::report`], for one of so many elements: 1 measures all
    /// and costs some, 16 costs next to nothing and gives estimates, 0 measures nothing. Default: 0.
    pub measure: Option<u32>,
}

impl Options {
    /// The options of a chain.
    pub(crate) fn of(node: &Node) -> Options {
        let mut all = node.options().cloned().unwrap_or_default();
        for up in node.inputs() {
            all = all.or(Options::of(&up));
        }
        all
    }

    fn or(self, other: Options) -> Options {
        Options {
            deterministic: self.deterministic.or(other.deterministic),
            debug: self.debug.or(other.debug),
            ram_budget: self.ram_budget.or(other.ram_budget),
            core_budget: self.core_budget.or(other.core_budget),
            tuning: self.tuning.or(other.tuning),
            measure: self.measure.or(other.measure),
        }
    }
}

/// One run of a pipeline, as its stages see it. Cheap to clone.
#[derive(Clone)]
pub struct Run {
    epoch: u64,
    shared: Arc<Shared>,
}

struct Shared {
    deterministic: bool,
    threads: bool,
    budget: Arc<Budget>,
    tuner: Arc<Tuner>,
    watch: Watch,
    notes: Mutex<Vec<String>>,
}

impl Run {
    pub(crate) fn new(node: &Node, epoch: u64, watch: Option<Watch>) -> Run {
        let options = Options::of(node);
        let cores = available_parallelism().map_or(1, |n| n.get());
        let cores = options.core_budget.unwrap_or(cores.saturating_sub(1)).max(1);
        let budget = Arc::new(Budget::new(options.ram_budget.unwrap_or_else(|| free_memory() / 4)));
        let watch = match watch {
            Some(watch) => watch,
            None => match options.measure.unwrap_or(0) {
                0 => Watch::Off,
                every => Watch::meter(node, every),
            },
        };
        let threads = options.debug != Some(true) && !watch.is_trace();
        let tuner = Arc::new(Tuner::new(node, cores, options.tuning));
        let deterministic = options.deterministic.unwrap_or(true);
        let notes = Mutex::default();
        Run { epoch, shared: Arc::new(Shared { deterministic, threads, budget, tuner, watch, notes }) }
    }

    /// A run that only looks at the first element: no threads, nothing measured.
    pub(crate) fn inspecting() -> Run {
        let shared = Shared {
            deterministic: true,
            threads: false,
            budget: Arc::new(Budget::new(usize::MAX)),
            tuner: Arc::new(Tuner::idle()),
            watch: Watch::Off,
            notes: Mutex::default(),
        };
        Run { epoch: 0, shared: Arc::new(shared) }
    }

    /// The epoch that the stage is to yield.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The same run at another epoch, for the stages above.
    pub fn at_epoch(&self, epoch: u64) -> Run {
        Run { epoch, shared: self.shared.clone() }
    }

    /// False when everything is to run on the calling thread.
    pub fn has_threads(&self) -> bool {
        self.shared.threads
    }

    /// Whether the order must not depend on threads.
    pub fn is_deterministic(&self) -> bool {
        self.shared.deterministic
    }

    /// Keeps what the user should know for the report, once.
    pub(crate) fn note(&self, text: String) {
        let mut notes = lock(&self.shared.notes);
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        lock(&self.shared.notes).clone()
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.shared.budget
    }

    pub(crate) fn tuner(&self) -> &Arc<Tuner> {
        &self.shared.tuner
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.shared.watch
    }

    pub(crate) fn watch_access(&self, node: &Node, access: Box<dyn Access>) -> Box<dyn Access> {
        self.shared.watch.access(node, access)
    }

    pub(crate) fn watch_cursor(&self, node: &Node, cursor: Box<dyn Cursor>) -> Box<dyn Cursor> {
        self.shared.watch.cursor(node, cursor)
    }
}
