//! Core of the input pipelines: [`Dataset`], its iterator, the stage trait and parallel prefetch.
//!
//! Also memory budgets and measuring. The stages themselves are in `stage/` and `source/`.

mod autotune;
mod batching;
mod cardinality;
mod cursor;
mod dataset;
mod held_elements;
mod map_fn;
mod options;
mod parallel_prefetch;
mod position;
mod report;
mod run;
mod run_observer;
mod stage;
mod stage_ids;

pub use autotune::{AUTOTUNE, PipelineTuning, ThreadCount, free_memory};
pub(crate) use autotune::{MemoryBudget, MemoryLease};
pub(crate) use batching::{BatchBuilder, Batching, at_batch, stack_all};
pub use cardinality::Cardinality;
pub(crate) use cursor::{AccessCursor, replay};
pub use cursor::{ElementCursor, RandomAccess};
pub use dataset::{Dataset, DatasetIter};
pub(crate) use held_elements::{HeldElements, NumberedSample};
pub use map_fn::MapFn;
pub(crate) use map_fn::apply;
pub use options::DatasetOptions;
pub(crate) use options::WITH_OPTIONS;
pub(crate) use parallel_prefetch::{InlinePrefetch, PrefetchBuilder};
pub(crate) use position::foreign;
pub use position::{IteratorState, PipelinePosition};
pub use report::{PipelineReport, QueueReport, StageReport};
pub use run::PipelineRun;
pub(crate) use run_observer::RunObserver;
pub use stage::{DatasetStage, StageNode, access, open};
pub(crate) use stage::{first_spec, prefetch_access, stages_of, stream};
pub(crate) use stage_ids::StageId;
