//! `with_options`: how the whole pipeline is run. Passes the elements on as they are.

use crate::Dataset;
use crate::pipeline::{
    DatasetOptions, DatasetStage, ElementCursor, PipelineRun, RandomAccess, StageNode, WITH_OPTIONS, access,
    stream,
};
use crate::sample::ElementSpec;
use systole_base::Result;

impl Dataset {
    /// How the whole pipeline is run; the elements stay the same unless it gives up their order.
    pub fn with_options(&self, options: DatasetOptions) -> Dataset {
        self.then(|up| WithOptionsStage { up, options })
    }

    /// False: parallel stages hand out elements as they are ready, in no fixed order.
    pub fn deterministic(&self, deterministic: bool) -> Dataset {
        self.with_options(DatasetOptions { deterministic: Some(deterministic), ..DatasetOptions::default() })
    }

    /// The same pipeline on the calling thread alone, for a debugger: same elements, same order.
    pub fn debug(&self) -> Dataset {
        self.with_options(DatasetOptions { debug: Some(true), ..DatasetOptions::default() })
    }
}

pub(crate) struct WithOptionsStage {
    pub up: StageNode,
    pub options: DatasetOptions,
}

impl DatasetStage for WithOptionsStage {
    fn label(&self) -> String {
        WITH_OPTIONS.into()
    }

    fn inputs(&self) -> Vec<StageNode> {
        vec![self.up.clone()]
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        access(&self.up, run)
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        stream(&self.up, run)
    }

    fn spec(&self) -> Result<ElementSpec> {
        self.up.spec()
    }

    fn options(&self) -> Option<&DatasetOptions> {
        Some(&self.options)
    }
}
