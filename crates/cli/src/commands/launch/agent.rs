//! `systole launch-agent`: what `launch --hosts` starts on another machine.

use crate::args::common::Common;
use crate::args::exit_status::{Outcome, Run};
use crate::render::screen::{Screen, note};
use clap::Args;

#[derive(Args)]
pub(crate) struct LaunchAgentArgs {}

impl Run for LaunchAgentArgs {
    fn run(self, _: &Common, _: &Screen) -> Outcome {
        Ok(systole_launch::run_agent(note)?)
    }

    fn starts_children(&self) -> bool {
        true
    }
}
