//! `systole init`: writes a commented TOML file for a training run.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand, check_out};
use crate::render::screen::{Screen, program, quoted};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use systole_config::{ConfigDraft, RunConfig};
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::err;

#[derive(Args)]
pub(crate) struct InitArgs {
    /// Preset to write
    ///
    /// One of fashion-mnist, mnist, glyphs, mlp, cifar-cnn, folder, tfrecord, table, resnet50, gpt2-small, gpt-micro,
    /// lstm, sentences, biggan or biggan128.
    #[arg(default_value = "fashion-mnist")]
    preset: String,
    /// Write to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

impl RunCommand for InitArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        if self.preset.contains(['.', '/']) {
            let e = err!(Config, "unknown preset `{}`", self.preset);
            let to = quoted(&self.preset);
            return Err(CommandError::usage(e.hint_command(format!(
                "to write a preset to that file run: systole init PRESET --out {to}"
            ))));
        }
        ConfigDraft::preset(&self.preset).map_err(CommandError::usage)?;
        let text = RunConfig::preset_text(&self.preset).unwrap_or_default();
        let Some(path) = &self.out else {
            match screen.json {
                true => screen.object(&json!({"preset": self.preset, "toml": text})),
                false => screen.line(text.trim_end()),
            }
            return Ok(0);
        };
        check_out(path, self.force)?;
        write_atomically(&OsFileSystem, path, &[text.as_bytes()])?;
        if screen.json {
            screen.object(&json!({"preset": self.preset, "file": path}));
        }
        screen.line(format!(
            "{} configures the whole run. Next:\n  {} train {}",
            path.display(),
            program(),
            quoted(path)
        ));
        Ok(0)
    }
}
