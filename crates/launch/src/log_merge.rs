//! Merges the output of all processes: selected processes on the terminal, all processes in the log.

use crate::output::LaunchOutput;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use systole_data::clock::now;
use systole_ir::{Error, Result};

/// Maximum number of lines buffered until the run folder exists.
const MOST_WAITING: usize = 10_000;

/// Writes process output to the terminal and the log.
pub(crate) struct MergedLog<'a> {
    output: &'a dyn LaunchOutput,
    shown: Option<Vec<u32>>,
    log: Mutex<LogFile>,
}

/// Index of a process and the prefix of its lines.
pub(crate) struct LinePrefix {
    pub(crate) index: u32,
    pub(crate) text: String,
}

#[derive(Default)]
struct LogFile {
    path: Option<PathBuf>,
    file: Option<File>,
    /// Lines from before the run folder existed.
    waiting: Vec<String>,
}

impl<'a> MergedLog<'a> {
    /// Creates the log at `log`, or as `in_folder` once that folder exists.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub(crate) fn new(
        output: &'a dyn LaunchOutput,
        shown: Option<&[u32]>,
        log: Option<&Path>,
        in_folder: Option<PathBuf>,
    ) -> Result<MergedLog<'a>> {
        let log = match log {
            Some(path) => {
                let hint = "choose another file with --log";
                let file = opened(path).map_err(|e| Error::io("cannot write", path, e).hint_command(hint))?;
                LogFile { path: Some(path.into()), file: Some(file), waiting: Vec::new() }
            }
            None => LogFile { path: in_folder, ..LogFile::default() },
        };
        Ok(MergedLog { output, shown: shown.map(<[u32]>::to_vec), log: Mutex::new(log) })
    }

    /// Prints a line of the launcher itself.
    pub(crate) fn launch(&self, text: &str) {
        let line = format!("[launch] {text}");
        self.write(&line);
        self.output.note(&line);
    }

    /// Prints a line that `--quiet` writes to the log only.
    pub(crate) fn detail(&self, text: &str) {
        if self.output.is_quiet() { self.write(&format!("[launch] {text}")) } else { self.launch(text) }
    }

    /// Handles a line of a process's standard output.
    pub(crate) fn result(&self, label: &LinePrefix, line: &str) {
        let line = format!("[{}] {line}", label.text);
        self.write(&line);
        if self.shows(label) {
            self.output.line(&line);
        }
    }

    /// Reads a process's standard error to the end.
    pub(crate) fn errors(&self, label: &LinePrefix, stream: Option<impl Read>, mut each: impl FnMut(&str)) {
        let mut is_error = false;
        lines(stream, |text| {
            each(text);
            // An error message and its indented lines are always shown.
            is_error = text.starts_with("error") || is_error && text.starts_with("  ");
            let line = format!("[{}] {text}", label.text);
            self.write(&line);
            if self.shows(label) || is_error {
                self.output.note(&line);
            }
        });
    }

    /// Returns the path of the log, if one is written.
    pub(crate) fn log_file(&self) -> Option<PathBuf> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.path.clone().filter(|_| log.file.is_some())
    }

    fn shows(&self, label: &LinePrefix) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.contains(&label.index))
    }

    /// Writes a line to the log only.
    pub(crate) fn write(&self, line: &str) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(e) = log.write(line) {
            let path = log.path.take().unwrap_or_default();
            *log = LogFile::default();
            self.output.note(&format!("[launch] the log ends here: cannot write {}: {e}", path.display()));
        }
    }
}

impl LogFile {
    fn write(&mut self, line: &str) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let line = format!("{} {line}\n", now());
        if self.file.is_none() && path.parent().is_some_and(Path::is_dir) {
            let mut file = opened(path)?;
            file.write_all(self.waiting.concat().as_bytes())?;
            (self.file, self.waiting) = (Some(file), Vec::new());
        }
        match &mut self.file {
            Some(file) => file.write_all(line.as_bytes()),
            None => {
                if self.waiting.len() < MOST_WAITING {
                    self.waiting.push(line);
                }
                Ok(())
            }
        }
    }
}

fn opened(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Calls `each` for each line of a stream as it arrives.
pub(crate) fn lines(stream: Option<impl Read>, mut each: impl FnMut(&str)) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
        each(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
}
