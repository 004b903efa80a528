//! `with_options`: sets run-time options of the whole pipeline. Passes elements through.

use crate::Dataset;
use crate::pipeline::{
    DatasetOptions, DatasetStage, ElementCursor, PipelineRun, RandomAccess, StageNode, WITH_OPTIONS, access,
    stream,
};
use crate::stage::delegate::delegate;
use systole_base::Result;

impl Dataset {
    /// Sets run-time options of the whole pipeline; the elements do not change unless a fixed order is disabled.
    pub fn with_options(&self, options: DatasetOptions) -> Dataset {
        self.then(|up| WithOptionsStage { up, options })
    }

    /// Sets whether the order is fixed; if not, parallel stages yield elements as soon as they are ready.
    pub fn deterministic(&self, deterministic: bool) -> Dataset {
        self.with_options(DatasetOptions { deterministic: Some(deterministic), ..DatasetOptions::default() })
    }

    /// Runs the pipeline on the calling thread, for a debugger: same elements, same order.
    pub fn debug(&self) -> Dataset {
        self.with_options(DatasetOptions { debug: Some(true), ..DatasetOptions::default() })
    }
}

pub(crate) struct WithOptionsStage {
    pub up: StageNode,
    pub options: DatasetOptions,
}

impl DatasetStage for WithOptionsStage {
    delegate!(inputs, spec);

    fn label(&self) -> String {
        WITH_OPTIONS.into()
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        access(&self.up, run)
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        stream(&self.up, run)
    }

    fn options(&self) -> Option<&DatasetOptions> {
        Some(&self.options)
    }
}
