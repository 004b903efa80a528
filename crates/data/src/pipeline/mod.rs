//! The ground of all pipelines: [`Dataset`] and its run, the contract of a stage, and what stages share: threads that
//! compute ahead, budgets, measuring. The stages themselves are above, in `stage/` and `source/`.

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

pub use autotune::{AUTOTUNE, Threads, Tuning, free_memory};
pub(crate) use autotune::{Budget, Lease};
pub(crate) use batching::{Batching, Stack, at_batch, stack_all};
pub use cardinality::Cardinality;
pub use cursor::{Access, Cursor};
pub(crate) use cursor::{Walk, replay};
pub use dataset::{Dataset, DatasetIter};
pub(crate) use held_elements::{HeldElements, Numbered};
pub use map_fn::MapFn;
pub(crate) use map_fn::apply;
pub use options::Options;
pub(crate) use options::WITH_OPTIONS;
pub(crate) use parallel_prefetch::{Ahead, Inline};
pub(crate) use position::foreign;
pub use position::{IteratorState, Position};
pub use report::{QueueReport, Report, StageReport};
pub use run::Run;
pub(crate) use run_observer::Watch;
pub use stage::{Node, Stage, access, open};
pub(crate) use stage::{first_spec, prefetch_access, stages_of, stream};
pub(crate) use stage_ids::Owner;
