//! `with_options`: how the whole pipeline is run. Passes the elements on as they are.

use crate::Dataset;
use crate::pipeline::{Access, Cursor, Node, Options, Run, Stage, WITH_OPTIONS, access, stream};
use crate::sample::ElementSpec;
use systole_base::Result;

impl Dataset {
    /// How the whole pipeline is run; the elements stay the same unless it gives up their order.
    pub fn with_options(&self, options: Options) -> Dataset {
        self.then(|up| WithOptions { up, options })
    }

    /// False: parallel stages hand out elements as they are ready, in no fixed order.
    pub fn deterministic(&self, deterministic: bool) -> Dataset {
        self.with_options(Options { deterministic: Some(deterministic), ..Options::default() })
    }

    /// The same pipeline on the calling thread alone, for a debugger: same elements, same order.
    pub fn debug(&self) -> Dataset {
        self.with_options(Options { debug: Some(true), ..Options::default() })
    }
}

pub(crate) struct WithOptions {
    pub up: Node,
    pub options: Options,
}

impl Stage for WithOptions {
    fn label(&self) -> String {
        WITH_OPTIONS.into()
    }

    fn inputs(&self) -> Vec<Node> {
        vec![self.up.clone()]
    }

    fn access(&self, run: &Run) -> Result<Option<Box<dyn Access>>> {
        access(&self.up, run)
    }

    fn stream(&self, run: &Run) -> Result<Box<dyn Cursor>> {
        stream(&self.up, run)
    }

    fn spec(&self) -> Result<ElementSpec> {
        self.up.spec()
    }

    fn options(&self) -> Option<&Options> {
        Some(&self.options)
    }
}
