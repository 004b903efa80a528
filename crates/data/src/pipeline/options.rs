//! [`DatasetOptions`]: run-time options of a pipeline, as in tf.data's `with_options`.

use super::autotune::PipelineTuning;

/// Label of the stage `with_options`; reports omit it because it does no work.
pub(crate) const WITH_OPTIONS: &str = "with_options";

/// Run-time options of a pipeline. `None` keeps the default; if a chain has several [`crate::Dataset::with_options`],
/// the last one that sets a value applies.
#[derive(Clone, Debug, Default)]
pub struct DatasetOptions {
    /// Whether the order of elements is fixed. False: parallel stages yield elements as soon as they are ready, which
    /// is faster. Default: true.
    pub deterministic: Option<bool>,
    /// Whether everything runs on the calling thread, for debuggers and backtraces. The elements are the same. Default:
    /// false.
    pub debug: Option<bool>,
    /// Memory budget in bytes for elements computed ahead, for all stages together. Default: a quarter of the free
    /// memory.
    pub ram_budget: Option<usize>,
    /// Maximum number of threads of all stages with [`crate::AUTOTUNE`] together. Default: all cores but one.
    pub core_budget: Option<usize>,
    /// Fixed sizes from an earlier run ([`crate::DatasetIter::freeze`]), instead of tuning.
    pub tuning: Option<PipelineTuning>,
    /// Sampling interval for measuring stage times for [`crate::DatasetIter::report`]: 1 measures all elements at some
    /// cost, 16 costs almost nothing and yields estimates, 0 disables measuring. Default: 0.
    pub measure: Option<u32>,
}

impl DatasetOptions {
    /// Returns these options, with unset ones taken from `other`.
    pub(crate) fn or(self, other: DatasetOptions) -> DatasetOptions {
        DatasetOptions {
            deterministic: self.deterministic.or(other.deterministic),
            debug: self.debug.or(other.debug),
            ram_budget: self.ram_budget.or(other.ram_budget),
            core_budget: self.core_budget.or(other.core_budget),
            tuning: self.tuning.or(other.tuning),
            measure: self.measure.or(other.measure),
        }
    }
}
