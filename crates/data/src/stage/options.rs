//! `with_options`: how the whole pipeline is run. Passes the elements on as they are.

use super::{Access, Cursor, Node, Stage};
use crate::dataset::Cardinality;
use crate::run::{Options, Run};
use crate::sample::ElementSpec;
use systole_base::Result;

pub(crate) struct WithOptions {
    pub up: Node,
    pub options: Options,
}

impl WithOptions {
    /// It does no work, so reports leave it out.
    pub const LABEL: &str = "with_options";
}

impl Stage for WithOptions {
    fn label(&self) -> String {
        WithOptions::LABEL.into()
    }

    fn inputs(&self) -> Vec<Node> {
        vec![self.up.clone()]
    }

    fn cardinality(&self) -> Cardinality {
        self.up.cardinality()
    }

    fn access(&self, run: &Run) -> Result<Option<Box<dyn Access>>> {
        super::access(&self.up, run)
    }

    fn stream(&self, run: &Run) -> Result<Box<dyn Cursor>> {
        Ok(run.watch_cursor(&self.up, self.up.stream(run)?))
    }

    fn spec(&self) -> Result<ElementSpec> {
        self.up.spec()
    }

    fn options(&self) -> Option<&Options> {
        Some(&self.options)
    }
}
