//! What processes say, merged: on the terminal those that are to be shown, in the log all of them.

use crate::output::LaunchOutput;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use systole_data::clock::now;
use systole_ir::{Error, Result};

/// Lines that are kept until the folder of the run is there.
const MOST_WAITING: usize = 10_000;

/// Where lines go.
pub(crate) struct MergedLog<'a> {
    output: &'a dyn LaunchOutput,
    shown: Option<Vec<u32>>,
    log: Mutex<LogFile>,
}

/// A process's number, and what stands before its lines.
pub(crate) struct LinePrefix {
    pub(crate) index: u32,
    pub(crate) text: String,
}

#[derive(Default)]
struct LogFile {
    path: Option<PathBuf>,
    file: Option<File>,
    /// What was said before the folder of the run was there.
    waiting: Vec<String>,
}

impl<'a> MergedLog<'a> {
    /// `log`: where all is written; `folder`: else there, with this name, once it is there.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub(crate) fn new(
        output: &'a dyn LaunchOutput,
        shown: Option<&[u32]>,
        log: Option<&Path>,
        in_folder: Option<PathBuf>,
    ) -> Result<MergedLog<'a>> {
        let log = match log {
            Some(path) => {
                let hint = "choose another file with --log";
                let file = opened(path).map_err(|e| Error::io("cannot write", path, e).hint(hint))?;
                LogFile { path: Some(path.into()), file: Some(file), waiting: Vec::new() }
            }
            None => LogFile { path: in_folder, ..LogFile::default() },
        };
        Ok(MergedLog { output, shown: shown.map(<[u32]>::to_vec), log: Mutex::new(log) })
    }

    /// A line of the launch itself.
    pub(crate) fn launch(&self, text: &str) {
        let line = format!("[launch] {text}");
        self.write(&line);
        self.output.note(&line);
    }

    /// One that `--quiet` leaves to the log.
    pub(crate) fn detail(&self, text: &str) {
        match self.output.is_quiet() {
            true => self.write(&format!("[launch] {text}")),
            false => self.launch(text),
        }
    }

    /// A line that a process wrote to its standard output.
    pub(crate) fn result(&self, label: &LinePrefix, line: &str) {
        let line = format!("[{}] {line}", label.text);
        self.write(&line);
        if self.shows(label) {
            self.output.line(&line);
        }
    }

    /// All that a process writes to its standard error.
    pub(crate) fn errors(&self, label: &LinePrefix, stream: Option<impl Read>, mut each: impl FnMut(&str)) {
        let mut is_error = false;
        lines(stream, |text| {
            each(text);
            // An error, and what belongs to it.
            is_error = text.starts_with("error") || is_error && text.starts_with("  ");
            let line = format!("[{}] {text}", label.text);
            self.write(&line);
            if self.shows(label) || is_error {
                self.output.note(&line);
            }
        });
    }

    /// Where the log is, if there is one by now.
    pub(crate) fn log_file(&self) -> Option<PathBuf> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.path.clone().filter(|_| log.file.is_some())
    }

    fn shows(&self, label: &LinePrefix) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.contains(&label.index))
    }

    /// Into the log, alone: the object that a process hands over, too.
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

/// Hands each line on as it comes.
pub(crate) fn lines(stream: Option<impl Read>, mut each: impl FnMut(&str)) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
        each(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
}
