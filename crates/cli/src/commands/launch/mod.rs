//! `systole launch`: runs several processes as the hosts of one training run.

mod agent;
mod args;
mod command_line;
mod wizard;

pub(crate) use agent::LaunchAgentArgs;
pub(crate) use args::LaunchArgs;

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::render::screen::{Screen, ignore_closed_output, note};
use args::LaunchAction;
use command_line::LaunchedCommand;
use serde_json::json;
use systole_ir::err;
use systole_launch::{Launch, LaunchOutput};

impl RunCommand for LaunchArgs {
    fn run(self, common: &CommonArgs, screen: &Screen) -> CommandResult {
        if let Some(LaunchAction::Config(args)) = &self.action {
            return wizard::configure(args, screen);
        }
        if common.trace.is_some() || common.flame.is_some() {
            let e = err!(Config, "--trace and --flame record a single process").at("launch");
            return Err(CommandError::usage(
                e.hint_command("remove --trace and --flame, or run `systole train` without launch"),
            ));
        }
        let config = self.merged().map_err(CommandError::usage)?;
        let mut launch =
            Launch::new(config, self.how.tpu.as_deref().unwrap_or_default()).map_err(CommandError::usage)?;
        launch.shown = self.show.map(|shown| shown.0);
        launch.collect_result = screen.json;
        let words = LaunchedCommand::of(&self.command, common, launch.config(), launch.count())
            .map_err(CommandError::usage)?;
        if words.are_wired {
            launch.set_secret().map_err(CommandError::usage)?;
        }
        // Processes outlive the terminal or reader of their output until they have saved the run.
        ignore_closed_output();
        let batch = launch.config().elastic.map(|_| batch(&words)).transpose()?;
        let ended = launch.run(words.into_command(batch), screen)?;
        if screen.json {
            screen.object(&json!({
                "processes": ended.processes,
                "devices": ended.devices,
                "restarts": ended.restarts,
                "left_out": ended.left_out,
                "log": ended.log,
                "exit_code": ended.code,
                "result": ended.result,
            }));
        }
        Ok(ended.code)
    }

    fn starts_children(&self) -> bool {
        true
    }
}

impl LaunchOutput for Screen {
    fn line(&self, text: &str) {
        Screen::line(self, text);
    }

    fn note(&self, text: &str) {
        note(text);
    }

    fn is_quiet(&self) -> bool {
        self.quiet
    }
}

/// Returns the global batch size of an elastic run.
fn batch(words: &LaunchedCommand) -> CommandResult<u64> {
    if !words.are_wired {
        let e = err!(Unsupported, "the hosts of a TPU slice cannot change").at("--elastic");
        return Err(CommandError::usage(e.hint_command("use --elastic with Systole's own plugin")));
    }
    words.batch()
}
