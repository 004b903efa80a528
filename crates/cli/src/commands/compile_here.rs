//! `systole compile-here`: compiles what a request asks for in this process, which the compiler may end.

use crate::args::common::Common;
use crate::args::exit_status::{Outcome, Run};
use crate::render::screen::Screen;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct CompileHereArgs {
    /// Where the request lies
    folder: PathBuf,
}

impl Run for CompileHereArgs {
    fn run(self, _: &Common, _: &Screen) -> Outcome {
        systole_pjrt::serve(&self.folder)?;
        Ok(0)
    }
}
