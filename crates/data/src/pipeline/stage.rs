//! [`DatasetStage`]: trait of a pipeline stage, and functions that run one.
//!
//! A stage that can compute element `i` on its own offers [`RandomAccess`]; a chain of such stages seeks in constant time and
//! runs on any number of threads. All others offer a sequential [`ElementCursor`]. [`open`] prefers random access.

use super::autotune::ThreadCount;
use super::cardinality::Cardinality;
use super::cursor::{AccessCursor, ElementCursor, RandomAccess};
use super::map_fn::MapFn;
use super::options::DatasetOptions;
use super::parallel_prefetch::{ParallelPrefetch, PrefetchBuilder};
use super::run::PipelineRun;
use super::stage_ids::{StageId, StageList};
use crate::sample::ElementSpec;
use std::sync::Arc;
use systole_base::{Result, err};

/// Shared reference to a pipeline stage.
pub type StageNode = Arc<dyn DatasetStage>;

/// Pipeline stage including its upstream stages: an immutable description.
pub trait DatasetStage: Send + Sync {
    /// Returns the label of this stage alone: `batch(128)`.
    fn label(&self) -> String;

    /// Returns the upstream stages.
    fn inputs(&self) -> Vec<StageNode> {
        Vec::new()
    }

    /// Returns the labels of the chain up to this stage.
    fn name(&self) -> String {
        chain(&self.inputs(), self.label())
    }

    /// Number of elements in one epoch; defaults to that of the only input.
    fn cardinality(&self) -> Cardinality {
        match self.inputs().as_slice() {
            [up] => up.cardinality(),
            _ => Cardinality::Unknown,
        }
    }

    /// Returns random access to the elements of an epoch, if this stage and all upstream ones support it; errors on
    /// invalid arguments.
    fn access(&self, _run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        Ok(None)
    }

    /// Returns the elements of an epoch in order; errors on invalid arguments. Only called if there is no random
    /// access.
    fn stream(&self, _run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Err(err!(Bug, "{} has neither random access nor a stream", self.label()))
    }

    /// Returns names and types of the first element.
    fn spec(&self) -> Result<ElementSpec> {
        first_spec(self, &PipelineRun::inspecting())
    }

    /// Number of threads for consumers of this stage's [`RandomAccess`]: the maximum of all stages computed there.
    fn threads(&self) -> Option<ThreadCount> {
        self.inputs().iter().filter_map(|n| n.threads()).max()
    }

    /// Whether threads compute the elements of [`DatasetStage::stream`] ahead, as tuned by AUTOTUNE.
    fn is_ahead(&self, _run: &PipelineRun) -> bool {
        false
    }

    /// Returns upstream stage, function and threads if this stage is a parallel map. A downstream stage may then work
    /// on the same threads.
    fn mapped(&self) -> Option<(StageNode, MapFn, ThreadCount)> {
        None
    }

    /// Whether its elements vary randomly between epochs (a downstream cache would freeze them).
    fn is_random(&self) -> bool {
        self.inputs().iter().any(|n| n.is_random())
    }

    /// Returns warnings about the chain up to this stage.
    fn warnings(&self) -> Vec<String> {
        warnings_of(&self.inputs())
    }

    /// Returns the options set here by [`crate::Dataset::with_options`].
    fn options(&self) -> Option<&DatasetOptions> {
        None
    }
}

/// [`DatasetStage::name`] of a stage with these inputs: one function, not one for each stage.
fn chain(inputs: &[StageNode], label: String) -> String {
    match inputs {
        [] => label,
        [up] => format!("{}.{label}", up.name()),
        many => {
            let names: Vec<String> = many.iter().map(|n| n.name()).collect();
            format!("{label}({})", names.join(", "))
        }
    }
}

fn warnings_of(inputs: &[StageNode]) -> Vec<String> {
    inputs.iter().flat_map(|n| n.warnings()).collect()
}

pub(crate) fn first_spec(stage: &(impl DatasetStage + ?Sized), run: &PipelineRun) -> Result<ElementSpec> {
    let mut cursor = match stage.access(run)? {
        Some(access) => Box::new(AccessCursor { access, at: 0 }),
        None => stage.stream(run)?,
    };
    match cursor.next() {
        Some(first) => first?.spec(),
        None => Err(err!(Data, "{} has no elements", stage.name())
            .hint("check the source, and the effect of filter, take and skip")),
    }
}

/// Returns a stage's elements in order: through random access if possible, with the requested threads.
pub fn open(node: &StageNode, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
    match access(node, run)? {
        Some(first) => match node.threads() {
            Some(threads) if run.has_threads() => {
                let ahead = PrefetchBuilder::new(StageId::of(&**node), run, threads, None);
                Ok(Box::new(prefetch_access(node, run, ahead, first)))
            }
            _ => Ok(Box::new(AccessCursor { access: first, at: 0 })),
        },
        None => stream(node, run),
    }
}

/// Returns a stage's random access, instrumented if the run is being measured.
pub fn access(node: &StageNode, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
    let address = StageId::of(&**node).address;
    Ok(node.access(run)?.map(|access| run.watch().access(address, access)))
}

/// Returns a stage's stream, instrumented if the run is being measured.
pub(crate) fn stream(node: &StageNode, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
    Ok(run.watch().cursor(StageId::of(&**node).address, node.stream(run)?))
}

/// Prefetches a stage with random access; each thread opens its own access, one uses `first`.
pub(crate) fn prefetch_access(
    node: &StageNode,
    run: &PipelineRun,
    ahead: PrefetchBuilder,
    first: Box<dyn RandomAccess>,
) -> ParallelPrefetch {
    let (node, run) = (node.clone(), run.clone());
    ahead.over_access(first, Box::new(move || access(&node, &run)))
}

impl StageId {
    pub fn of(stage: &(impl DatasetStage + ?Sized)) -> StageId {
        StageId { address: std::ptr::from_ref(stage).cast::<()>() as usize, label: stage.label() }
    }
}

/// Returns the stages of a chain, sources first.
pub(crate) fn stages_of(node: &StageNode) -> StageList {
    fn add(stages: &mut StageList, node: &StageNode) {
        node.inputs().iter().for_each(|up| add(stages, up));
        stages.add(StageId::of(&**node));
    }
    let mut stages = StageList::default();
    add(&mut stages, node);
    stages
}

/// Returns the merged options of a chain.
pub(crate) fn options_of(node: &StageNode) -> DatasetOptions {
    let own = node.options().cloned().unwrap_or_default();
    node.inputs().iter().fold(own, |all, up| all.or(options_of(up)))
}
