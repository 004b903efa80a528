//! `systole launch-agent` (hidden): the process that `launch --hosts` starts on another machine.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::render::screen::{Screen, note};
use clap::Args;

#[derive(Args)]
pub(crate) struct LaunchAgentArgs {}

impl RunCommand for LaunchAgentArgs {
    fn run(self, _: &CommonArgs, _: &Screen) -> CommandResult {
        Ok(systole_launch::run_agent(note)?)
    }

    fn starts_children(&self) -> bool {
        true
    }
}
