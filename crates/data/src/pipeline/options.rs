//! [`DatasetOptions`]: how a pipeline is run, as tf.data's `with_options`.

use super::autotune::PipelineTuning;

/// The label of the stage `with_options`; it does no work, so reports leave it out.
pub(crate) const WITH_OPTIONS: &str = "with_options";

/// How a pipeline is run. What is `None` keeps its default; of several [`crate::Dataset::with_options`] in a chain
/// the last one that says something counts.
#[derive(Clone, Debug, Default)]
pub struct DatasetOptions {
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
    pub tuning: Option<PipelineTuning>,
    /// Measures the time of every stage, for [`crate::DatasetIter::report`], for one of so many elements: 1 measures all
    /// and costs some, 16 costs next to nothing and gives estimates, 0 measures nothing. Default: 0.
    pub measure: Option<u32>,
}

impl DatasetOptions {
    /// These, and what they leave open as in `other`.
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
