//! `systole compile-here`: compiles what a request asks for in this process, which the compiler may end.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::render::screen::Screen;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct CompileHereArgs {
    /// Where the request lies
    folder: PathBuf,
}

impl RunCommand for CompileHereArgs {
    fn run(self, _: &CommonArgs, _: &Screen) -> CommandResult {
        systole_pjrt::serve(&self.folder)?;
        Ok(0)
    }
}
