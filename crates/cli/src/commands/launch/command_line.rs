//! Builds the command line of each launched process and extracts what the launcher needs from it.

use crate::args::clap_root;
use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult};
use crate::commands::train::TrainArgs;
use crate::models::run_directory::record_file;
use clap::FromArgMatches;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use systole_config::{LaunchConfig, LaunchTarget};
use systole_ir::{Error, ErrorKind, Result, err};
use systole_launch::ProcessCommand;

/// Command line of the launched processes.
pub(super) struct LaunchedCommand {
    args: Vec<OsString>,
    /// Whether plugin options connect the processes; the hosts of a TPU slice find each other.
    pub(super) are_wired: bool,
    /// Run folder, if the command names it.
    folder: Option<PathBuf>,
    /// The original arguments, without those of the launch.
    given: Vec<OsString>,
}

impl LaunchedCommand {
    /// Builds the command line.
    ///
    /// # Errors
    /// If the command or the device does not support several processes.
    pub(super) fn of(
        command: &[OsString],
        common: &CommonArgs,
        config: &LaunchConfig,
        count: u32,
    ) -> Result<LaunchedCommand> {
        let (first, rest) = command
            .split_first()
            .ok_or_else(|| err!(Bug, "`systole launch` got no command to run").at("launch"))?;
        if first != "train" && first != "resume" {
            let what = format!("`{}` cannot run in several processes", first.display());
            let hint = "write train or resume after `--`: launch --nproc 2 -- train fashion-mnist";
            return Err(Error::new(ErrorKind::Config, what).at("launch").hint_command(hint));
        }
        let given = common
            .device
            .clone()
            .or_else(|| value_of(rest, "--device"))
            .or_else(|| value_of(rest, "--backend"));
        let mut own: Vec<OsString> = Vec::new();
        let device = match given {
            Some(device) => device,
            None => {
                let device = usual_device(config);
                own.push(format!("--device={device}").into());
                device
            }
        };
        let is_plugin = device.starts_with("pjrt");
        if count > 1 && !is_plugin && device != "tpu" {
            let e = err!(Unsupported, "processes on {device} cannot communicate").at("--device");
            return Err(e.hint_command(
                "remove --device to use Systole's own plugin, or pass --device tpu on the hosts of a slice",
            ));
        }
        let on_this_machine = config.place == LaunchTarget::ThisMachine;
        if on_this_machine && common.threads.is_none() && value_of(rest, "--threads").is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            own.push(format!("--threads={}", (cores / count.max(1) as usize).max(1)).into());
        }
        let mut passed = Command::new("");
        common.pass_on(&mut passed);
        let passed = passed.get_args().map(OsString::from);
        let json = common.json.then(|| "--json".into());
        let args = [first.clone()].into_iter().chain(own).chain(passed).chain(json).chain(rest.to_vec());
        let folder = match first == "resume" {
            true => rest.iter().map(PathBuf::from).find(|folder| record_file(folder).is_file()),
            false => value_of(rest, "--out").map(PathBuf::from),
        };
        Ok(LaunchedCommand { args: args.collect(), are_wired: is_plugin, folder, given: command.to_vec() })
    }

    /// Returns the command of each process.
    pub(super) fn into_command(self, batch: Option<u64>) -> ProcessCommand {
        ProcessCommand {
            sets_threads: value_of(&self.args, "--threads").is_some(),
            args: self.args,
            is_wired: self.are_wired,
            run_dir: self.folder,
            batch,
        }
    }

    /// Returns the global batch size, which stays the same if processes are dropped.
    ///
    /// # Errors
    /// If the configuration is invalid or fixes the devices.
    pub(super) fn batch(&self) -> CommandResult<u64> {
        let config = match &self.folder {
            Some(folder) if self.given.first().is_some_and(|word| word == "resume") => recorded(folder)?,
            _ if chooses_batch(&self.given)? => {
                let e = err!(Config, "--elastic cannot be combined with the batch size `auto`");
                let why =
                    "--elastic keeps the batch size when devices are lost, and `auto` depends on the devices";
                let hint = "pass a number, such as --batch-size 256; `train` with --print-config shows the number that `auto` chooses";
                return Err(CommandError::usage(e.at("--elastic").because(why).hint_command(hint)));
            }
            _ => self.printed()?,
        };
        let is_named = |key: &str| config.pointer(&format!("/strategy/{key}")).is_some_and(|v| !v.is_null());
        if let Some(key) = ["devices", "mesh"].into_iter().find(|key| is_named(key)) {
            let e = err!(Config, "the strategy fixes its devices (`{key}`)").at("--elastic");
            let hint = "remove the key: --elastic uses the devices of all processes";
            return Err(CommandError::usage(e.hint_command(hint)));
        }
        let batch = config.pointer("/fit/batch_size").and_then(Value::as_u64);
        let missing = || err!(Config, "the configuration has no batch size").at("--elastic");
        Ok(batch.ok_or_else(missing)?)
    }

    /// Runs the command with `--print-config` and returns the configuration.
    fn printed(&self) -> CommandResult<Value> {
        let failed = |e: std::io::Error| err!(Io, "cannot start a child process").because(e.to_string());
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        let given = self.given.iter().filter(|word| *word != "--print-config");
        command.args(given).args(["--print-config", "--json"]);
        let done = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().map_err(failed)?;
        let said: Option<Value> = serde_json::from_slice(&done.stdout).ok();
        let text = |key: &str| said.as_ref().and_then(|v| v.get(key)).and_then(Value::as_str);
        match &said {
            Some(config) if done.status.success() => Ok(config.clone()),
            _ => {
                let what = text("error").unwrap_or("cannot read the configuration of the run");
                let e =
                    Error::new(ErrorKind::Config, what).at(text("where").unwrap_or("the command after --"));
                let e = text("try").map_or(e.clone(), |hint| e.hint_command(hint));
                Err(CommandError {
                    error: e,
                    code: done.status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1),
                })
            }
        }
    }
}

/// Whether `train` with these arguments chooses the batch size for the available devices.
fn chooses_batch(given: &[OsString]) -> CommandResult<bool> {
    let words = [OsString::from("systole")].into_iter().chain(given.iter().cloned());
    // Errors in the arguments are reported by the command itself.
    let Ok(matches) = clap_root::command().try_get_matches_from(words) else { return Ok(false) };
    let train = matches.subcommand_matches("train").map(TrainArgs::from_arg_matches);
    train.and_then(std::result::Result::ok).map_or(Ok(false), TrainArgs::chooses_batch)
}

/// Reads the configuration of the run in a folder.
fn recorded(folder: &Path) -> Result<Value> {
    let path = record_file(folder);
    let text = std::fs::read_to_string(&path).map_err(|e| {
        Error::io("cannot read", &path, e).hint_command("name a run folder: systole resume runs/PRESET")
    })?;
    let record: Value = serde_json::from_str(&text).map_err(|e| {
        let error = err!(Data, "cannot parse the run record");
        error.at(path.display().to_string()).because(e.to_string())
    })?;
    Ok(record.get("config").cloned().unwrap_or_default())
}

/// Default device: TPUs on the hosts of a slice, otherwise a named plugin or Systole's own.
fn usual_device(config: &LaunchConfig) -> String {
    match &config.plugin {
        Some(plugin) => format!("pjrt:{}", plugin.display()),
        None if config.place == LaunchTarget::Tpu => "tpu".into(),
        None => "pjrt".into(),
    }
}

/// Returns the last value of an option.
fn value_of(words: &[OsString], option: &str) -> Option<String> {
    let text = |word: &OsStr| word.to_string_lossy().into_owned();
    let mut given = words.iter().enumerate().filter_map(|(k, word)| match text(word).strip_prefix(option) {
        Some("") => words.get(k + 1).map(|value| text(value)),
        Some(rest) => rest.strip_prefix('=').map(String::from),
        None => None,
    });
    given.next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_in_both_forms() {
        let words = ["train", "--out", "a b", "--outer=1", "--device=cpu", "--out=c"].map(OsString::from);
        assert_eq!(value_of(&words[..4], "--out").as_deref(), Some("a b"));
        assert_eq!(value_of(&words, "--out").as_deref(), Some("c"));
        assert_eq!(value_of(&words, "--device").as_deref(), Some("cpu"));
        assert_eq!(value_of(&words, "--threads"), None);
    }
}
