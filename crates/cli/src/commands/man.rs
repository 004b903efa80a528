//! `systole man`: writes a manual page for each command.

use crate::args::clap_root;
use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::render::screen::{Screen, quoted};
use clap::{Args, Command};
use clap_mangen::Man;
use serde_json::json;
use std::path::{Path, PathBuf};
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Error, Result};

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Write systole.1, systole-train.1 and so on to this folder; create it if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl RunCommand for ManArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        std::fs::create_dir_all(&self.out).map_err(|e| {
            Error::io("cannot create the folder", &self.out, e)
                .hint_command("choose another folder with --out")
        })?;
        let mut whole = clap_root::command().disable_help_subcommand(true);
        whole.build();
        let mut files = Vec::new();
        write(&whole, &self.out, &mut files)?;
        if screen.json {
            screen.object(&json!({"folder": self.out, "files": files}));
        }
        screen.line(format!(
            "{} pages; read one with: man {}",
            files.len(),
            quoted(self.out.join("systole.1"))
        ));
        Ok(0)
    }
}

/// Writes the page of a command and of its subcommands.
fn write(command: &Command, folder: &Path, files: &mut Vec<String>) -> Result<()> {
    let name = format!("{}.1", command.get_display_name().unwrap_or_else(|| command.get_name()));
    let (mut page, path) = (Vec::new(), folder.join(&name));
    Man::new(command.clone())
        .render(&mut page)
        .map_err(|e| Error::io("cannot render the page", &path, e).hint_command("choose another folder"))?;
    write_atomically(&OsFileSystem, &path, &[&page])?;
    files.push(name);
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.into_iter().try_for_each(|command| write(command, folder, files))
}
