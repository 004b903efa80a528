//! `systole resume`: goes on with the run of a folder.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::models::model_data::tokenizer_of;
use crate::models::run_directory::{self, ResumeMode, RunRecord, SaveArgs};
use crate::render::screen::Screen;
use crate::run::training::{RunDirectory, RunStart, announce_data, load_data, train};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;
use systole_ir::{Error, ErrorKind};
use systole_nn::Model;

#[derive(Args)]
pub(crate) struct ResumeArgs {
    /// The folder of a run: what `systole train` was given with --out, or runs/PRESET
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    save: SaveArgs,
    /// Show a dashboard while training, as `train --tui`
    #[arg(long)]
    tui: bool,
}

impl RunCommand for ResumeArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        resume(self, screen)
    }
}

/// What to name in place of something that holds no run: the run that a file belongs to, where it does.
fn run_of(named: &Path) -> String {
    let folder = named.parent().filter(|f| named.is_file() && RunRecord::read(f).is_ok_and(|r| r.is_some()));
    match folder {
        Some(folder) => format!("name the run's folder: resume {}", folder.display()),
        None => "name the folder of a run, such as runs/PRESET".into(),
    }
}

fn resume(args: ResumeArgs, screen: &Screen) -> CommandResult {
    let began = Instant::now();
    let Some(mut record) = RunRecord::read(&args.folder)? else {
        let e = Error::new(ErrorKind::Io, format!("{} holds no run", args.folder.display()));
        return Err(e.hint(run_of(&args.folder)).into());
    };
    record.config.fit.tui |= args.tui;
    // The saved model may have been moved away since, or be one that this run has written itself.
    let earlier = match &record.from {
        Some(from) => Some(run_directory::saved(&args.folder)?.map_or_else(|| Model::load(from), Ok)?),
        None => None,
    };
    record.config.data.known_tokenizer = earlier.as_ref().map_or(Ok(None), tokenizer_of)?;
    let data = load_data(&record.config, screen)?;
    announce_data(&data, &record.reason, screen);
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
