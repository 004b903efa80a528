//! `systole completions`: prints a shell completion script.

use crate::args::clap_root;
use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::render::screen::Screen;
use clap::{Args, ValueEnum};
use clap_complete::Shell;
use serde_json::json;
use systole_ir::err;

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to generate the script for
    shell: Shell,
}

impl RunCommand for CompletionsArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let mut bytes = Vec::new();
        clap_complete::generate(self.shell, &mut clap_root::command(), "systole", &mut bytes);
        let script = String::from_utf8(bytes)
            .map_err(|e| err!(Bug, "the generated completion script is not UTF-8").because(e.to_string()))?;
        if screen.json {
            let name = self.shell.to_possible_value().map(|value| value.get_name().to_string());
            screen.object(&json!({"shell": name, "script": script}));
        } else {
            screen.line(script.trim_end());
        }
        Ok(0)
    }
}
