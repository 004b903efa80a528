//! `systole resume`: resumes the training run of a folder.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::models::imported;
use crate::models::model_data::tokenizer_of;
use crate::models::run_directory::{self, ResumeMode, RunRecord, SaveArgs};
use crate::render::screen::Screen;
use crate::run::training::{RunDirectory, RunStart, announce_data, load_data, train};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;
use systole_ir::err;

#[derive(Args)]
pub(crate) struct ResumeArgs {
    /// Run folder: the --out folder of `systole train`, or runs/PRESET
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    save: SaveArgs,
    /// Show a terminal dashboard while training, like `train --tui`
    #[arg(long)]
    tui: bool,
}

impl RunCommand for ResumeArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        resume(self, screen)
    }
}

/// Hint if `named` is not a run folder: the folder of the file, if that is one.
fn run_of(named: &Path) -> String {
    let folder = named.parent().filter(|f| named.is_file() && RunRecord::read(f).is_ok_and(|r| r.is_some()));
    match folder {
        Some(folder) => format!("name the run folder: resume {}", folder.display()),
        None => "name a run folder, such as runs/PRESET".into(),
    }
}

fn resume(args: ResumeArgs, screen: &Screen) -> CommandResult {
    let began = Instant::now();
    let Some(mut record) = RunRecord::read(&args.folder)? else {
        let e = err!(Io, "`{}` contains no run", args.folder.display());
        return Err(e.hint_command(run_of(&args.folder)).into());
    };
    record.config.fit.tui |= args.tui;
    // The original model may have moved, or been overwritten by this run.
    let earlier = match &record.from {
        Some(from) => Some(run_directory::saved(&args.folder)?.map_or_else(|| imported::load(from), Ok)?),
        None => None,
    };
    record.config.data.known_tokenizer = earlier.as_ref().map_or(Ok(None), tokenizer_of)?;
    let data = load_data(&record.config, screen)?;
    announce_data(&record.config, &data, &record.reason, screen);
    let record = RunRecord { data: data.identity.clone(), ..record };
    let folder = RunDirectory::make(args.folder, &data.name)?;
    train(
        RunStart { record, data, earlier, pause_after: None },
        folder,
        (ResumeMode::Auto, &args.save),
        began,
        screen,
    )
}
