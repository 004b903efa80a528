//! [`PipelineRun`]: context shared by the stages of one running pipeline: epoch, options, memory budget, tuner, observer.

use super::autotune::{MemoryBudget, PipelineTuner, free_memory};
use super::options::DatasetOptions;
use super::run_observer::RunObserver;
use super::stage_ids::StageList;
use crate::mutex::lock;
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;

/// Context of one run of a pipeline, passed to its stages. Cheap to clone.
#[derive(Clone)]
pub struct PipelineRun {
    epoch: u64,
    shared: Arc<PipelineRunInner>,
}

struct PipelineRunInner {
    deterministic: bool,
    threads: bool,
    budget: Arc<MemoryBudget>,
    tuner: Arc<PipelineTuner>,
    watch: RunObserver,
    notes: Mutex<Vec<String>>,
}

impl PipelineRun {
    /// Creates a run of these stages; `watch` replaces the measuring set in the options.
    pub(crate) fn new(
        stages: StageList,
        options: DatasetOptions,
        epoch: u64,
        watch: Option<RunObserver>,
    ) -> PipelineRun {
        let cores = available_parallelism().map_or(1, |n| n.get());
        let cores = options.core_budget.unwrap_or(cores.saturating_sub(1)).max(1);
        let budget = Arc::new(MemoryBudget::new(options.ram_budget.unwrap_or_else(|| free_memory() / 4)));
        let watch = match watch {
            Some(watch) => watch,
            None => match options.measure.unwrap_or(0) {
                0 => RunObserver::Off,
                every => RunObserver::meter(stages.clone(), every),
            },
        };
        let threads = options.debug != Some(true) && !watch.is_trace();
        let tuner = Arc::new(PipelineTuner::new(stages, cores, options.tuning));
        let deterministic = options.deterministic.unwrap_or(true);
        let notes = Mutex::default();
        PipelineRun {
            epoch,
            shared: Arc::new(PipelineRunInner { deterministic, threads, budget, tuner, watch, notes }),
        }
    }

    /// Creates a run that only inspects the first element: no threads, no measuring.
    pub(crate) fn inspecting() -> PipelineRun {
        let shared = PipelineRunInner {
            deterministic: true,
            threads: false,
            budget: Arc::new(MemoryBudget::new(usize::MAX)),
            tuner: Arc::new(PipelineTuner::idle()),
            watch: RunObserver::Off,
            notes: Mutex::default(),
        };
        PipelineRun { epoch: 0, shared: Arc::new(shared) }
    }

    /// Returns the epoch whose elements the stage should yield.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the same pipeline run in another epoch, for upstream stages.
    pub fn at_epoch(&self, epoch: u64) -> PipelineRun {
        PipelineRun { epoch, shared: self.shared.clone() }
    }

    /// Whether the pipeline may use threads; otherwise everything runs on the calling thread.
    pub fn has_threads(&self) -> bool {
        self.shared.threads
    }

    /// Whether the order of elements must not depend on threads.
    pub fn is_deterministic(&self) -> bool {
        self.shared.deterministic
    }

    /// Adds a note to the report, once.
    pub(crate) fn note(&self, text: String) {
        let mut notes = lock(&self.shared.notes);
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        lock(&self.shared.notes).clone()
    }

    pub(crate) fn budget(&self) -> &Arc<MemoryBudget> {
        &self.shared.budget
    }

    pub(crate) fn tuner(&self) -> &Arc<PipelineTuner> {
        &self.shared.tuner
    }

    pub(crate) fn watch(&self) -> &RunObserver {
        &self.shared.watch
    }
}
