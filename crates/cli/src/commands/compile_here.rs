//! `systole compile-here` (hidden): compiles one request in a child process, because the compiler may abort the
//! process.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::render::screen::Screen;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct CompileHereArgs {
    /// Folder of the request
    folder: PathBuf,
}

impl RunCommand for CompileHereArgs {
    fn run(self, _: &CommonArgs, _: &Screen) -> CommandResult {
        systole_pjrt::serve(&self.folder)?;
        Ok(0)
    }
}
