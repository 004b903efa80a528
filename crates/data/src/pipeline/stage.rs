//! [`DatasetStage`]: one stage of a pipeline with all above it, and how one is run.
//!
//! A stage that can compute its element `i` alone offers [`Access`]; every chain of such stages seeks in
//! constant time and is computed by as many threads as one likes. All others offer a [`Cursor`], which walks.
//! [`open`] prefers the first.

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
use systole_base::{Error, ErrorKind, Result};

/// A stage that others build on.
pub type StageNode = Arc<dyn DatasetStage>;

/// One stage with everything above it: an immutable description.
pub trait DatasetStage: Send + Sync {
    /// The stage alone, as it would be written: `batch(128)`.
    fn label(&self) -> String;

    /// The stages that it takes elements from.
    fn inputs(&self) -> Vec<StageNode> {
        Vec::new()
    }

    /// The chain up to here, as it would be written.
    fn name(&self) -> String {
        chain(&self.inputs(), self.label())
    }

    /// Elements in one epoch: as many as the only input has, unless the stage says otherwise.
    fn cardinality(&self) -> Cardinality {
        match self.inputs().as_slice() {
            [up] => up.cardinality(),
            _ => Cardinality::Unknown,
        }
    }

    /// Random access to the elements of an epoch, where the stage and all above it can; errors on wrong arguments.
    fn access(&self, _run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        Ok(None)
    }

    /// The elements of an epoch in order; errors on wrong arguments. Only called when there is no access.
    fn stream(&self, _run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Err(Error::new(ErrorKind::Bug, format!("{} offers neither access nor a stream", self.label())))
    }

    /// Names and types of the first element.
    fn spec(&self) -> Result<ElementSpec> {
        first_spec(self, &PipelineRun::inspecting())
    }

    /// Threads that whoever walks this stage's [`Access`] should use: the most that any stage asked for whose
    /// work is done there.
    fn threads(&self) -> Option<ThreadCount> {
        self.inputs().iter().filter_map(|n| n.threads()).max()
    }

    /// Whether threads compute the elements of its [`DatasetStage::stream`] ahead, as far as AUTOTUNE finds good.
    fn is_ahead(&self, _run: &PipelineRun) -> bool {
        false
    }

    /// Where this stage is a function computed by threads: the stage above, the function, the threads. What comes below
    /// may then do its own work on the same threads.
    fn mapped(&self) -> Option<(StageNode, MapFn, ThreadCount)> {
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
        None => Err(Error::new(ErrorKind::Data, format!("{} has no elements", stage.name()))
            .hint("check the source, and what filter, take and skip leave of it")),
    }
}

/// A stage's elements in order: by access where there is any, with the threads that were asked for.
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

/// A stage's random access, watched where the run is being measured.
pub fn access(node: &StageNode, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
    let address = StageId::of(&**node).address;
    Ok(node.access(run)?.map(|access| run.watch().access(address, access)))
}

/// A stage's stream, watched where the run is being measured.
pub(crate) fn stream(node: &StageNode, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
    Ok(run.watch().cursor(StageId::of(&**node).address, node.stream(run)?))
}

/// The elements of a stage with random access, computed ahead; each thread opens an access of its own, one takes `first`.
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

/// The stages of a chain, sources first.
pub(crate) fn stages_of(node: &StageNode) -> StageList {
    fn add(stages: &mut StageList, node: &StageNode) {
        node.inputs().iter().for_each(|up| add(stages, up));
        stages.add(StageId::of(&**node));
    }
    let mut stages = StageList::default();
    add(&mut stages, node);
    stages
}

/// The options of a chain.
pub(crate) fn options_of(node: &StageNode) -> DatasetOptions {
    let own = node.options().cloned().unwrap_or_default();
    node.inputs().iter().fold(own, |all, up| all.or(options_of(up)))
}
