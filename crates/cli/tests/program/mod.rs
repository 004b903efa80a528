//! Test helpers that run the real `systole` program on small generated datasets.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod hint_sites;
pub mod made;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use systole_data::format::idx;
use systole_ir::Literal;
use systole_testing::ShownError;

/// Probabilities of an answer of `predict --json` in the order of the classes.
pub fn probabilities(answer: &serde_json::Value) -> Vec<f64> {
    let mut top: Vec<(u64, f64)> = answer["top"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["label"].as_u64().unwrap(), t["probability"].as_f64().unwrap()))
        .collect();
    top.sort_by_key(|(label, _)| *label);
    top.into_iter().map(|(_, p)| p).collect()
}

/// The exit code of a kind, as in the table of kinds in `docs/guide/command-line.md`.
pub fn exit_code(kind: &str) -> i32 {
    if kind == "usage" { 2 } else { 1 }
}

/// Settings for layers and steps small enough that a run takes almost no time; for the presets `fashion-mnist` and
/// `glyphs`.
pub const TINY: [&str; 6] = [
    "--set=layers.0.filters=2",
    "--epochs=2",
    "--steps-per-epoch=2",
    "--batch-size=16",
    "--seed=3",
    "--threads=1",
];

/// Number of folders made by this process: tests of one binary may use the same name.
static FOLDERS: AtomicUsize = AtomicUsize::new(0);

/// Temporary folder of a test, removed on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let dir = format!("{name}-{}-{number}", std::process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(dir);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }

    /// Creates a folder with the dataset `data/fashion-mnist`.
    pub fn with_data(name: &str) -> Folder {
        let folder = Folder::new(name);
        folder.write_set("data/fashion-mnist", 64, 32);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a dataset as four IDX files, images gzipped and labels plain. Each class has its own bright column.
    pub fn write_set(&self, name: &str, train: usize, test: usize) {
        for (stem, n) in [("train", train), ("t10k", test)] {
            let labels: Vec<u8> = (0..n).map(|i| (i % 10) as u8).collect();
            let pixel = |i: usize| {
                let (k, x) = (i / 784, i % 28);
                if x / 2 == labels[k] as usize {
                    200
                } else {
                    ((i as u32).wrapping_mul(2_654_435_761) >> 26) as u8
                }
            };
            let images: Vec<u8> = (0..n * 784).map(pixel).collect();
            let images = Literal::from_slice([n, 28, 28], &images).unwrap();
            let labels = Literal::from_slice([n], &labels).unwrap();
            self.write(&format!("{name}/{stem}-images-idx3-ubyte.gz"), idx::to_bytes(&images, true).unwrap());
            self.write(&format!("{name}/{stem}-labels-idx1-ubyte"), idx::to_bytes(&labels, false).unwrap());
        }
    }

    /// Returns a command that runs the program in this folder, without the user's settings and without a network.
    /// Downloads fail at once, since their cache path lies below a file.
    pub fn command(&self, args: &[&str]) -> Command {
        let no_folder = self.write("no-folder", "");
        let mut command = Command::new(env!("CARGO_BIN_EXE_systole"));
        for name in ["SYSTOLE_DATA", "SYSTOLE_LOG", "SYSTOLE_THREADS", "SYSTOLE_BACKEND", "NO_COLOR"] {
            command.env_remove(name);
        }
        command
            .env("SYSTOLE_CACHE", no_folder.join("cache"))
            .current_dir(&self.0)
            .args(args)
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Done {
        Done::of(self.command(args).output().unwrap(), args)
    }

    /// Trains a tiny model into `DIR/fashion-mnist.safetensors`.
    pub fn train(&self, dir: &str) -> PathBuf {
        let mut args = vec!["train", "fashion-mnist", "--data-dir=data", "--out", dir, "--quiet"];
        args.extend(TINY);
        self.run(&args).ok();
        self.path(dir).join("fashion-mnist.safetensors")
    }

    /// Converts the dataset of [`Folder::with_data`] to `TO/train-*` with `shards` files and `TO/test-*` with one.
    pub fn convert(&self, to: &str, shards: &str, more: &[&str]) {
        for (part, shards) in [("train", shards), ("test", "1")] {
            let prefix = format!("{to}/{part}");
            let args =
                ["data", "convert", "fashion-mnist", &prefix, "--data-dir=data", "--part", part, "--shards"];
            self.run(&[&args[..], &[shards], more].concat()).ok();
        }
    }

    /// Names of all entries below `dir`, empty if it does not exist.
    pub fn files(&self, dir: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(dir)) else { return Vec::new() };
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns what is wrong with the wording of a line of an error message: a repeated label, or an empty part.
pub fn wording_slip(line: &str) -> Option<String> {
    let labels = ["  where: ", "  why: ", "  try: "];
    let head = line.starts_with("error[").then(|| line.find("]: ").map(|at| &line[..at + 3])).flatten();
    let label = head.or_else(|| labels.into_iter().find(|label| line.starts_with(label)))?;
    let text = &line[label.len()..];
    let repeated =
        ["where: ", "why: ", "try: "].into_iter().find(|other| text.contains(&format!(" {other}")));
    let again = text.starts_with(label.trim_start()).then_some(label);
    let is_cut = [" is", " are"].into_iter().find(|end| text.trim_end().ends_with(end));
    let empty = ["did you mean ``", "; ;", ", ,"].into_iter().find(|part| text.contains(part));
    let slip = again.or(repeated).or(is_cut).or(empty);
    match text.trim().is_empty() || text != text.trim_end() {
        true => Some(format!("an empty part in `{line}`")),
        false => slip.map(|slip| format!("`{slip}` in `{line}`")),
    }
}

/// The text literals of a source file.
pub fn literals(text: &str) -> Vec<String> {
    let (mut all, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find(['"', '\'', '/']) {
        let (mark, after) = (&rest[start..=start], &rest[start + 1..]);
        match mark {
            "/" if after.starts_with('/') => rest = after.split_once('\n').map_or("", |(_, r)| r),
            // A character, or a lifetime.
            "'" if after.starts_with(['"', '\\']) => rest = after.get(3..).unwrap_or_default(),
            "\"" => {
                let mut escaped = false;
                let end = after.char_indices().find(|(_, c)| {
                    let ends = *c == '"' && !escaped;
                    escaped = *c == '\\' && !escaped;
                    ends
                });
                let Some((end, _)) = end else { break };
                all.push(after[..end].replace("\\\"", "\""));
                rest = &after[end + 1..];
            }
            _ => rest = after,
        }
    }
    all
}

/// Output and exit code of a finished run of the program.
pub struct Done {
    pub what: String,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    pub fn of(output: Output, args: &[&str]) -> Done {
        let done = Done {
            what: args.join(" "),
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        };
        let slip = done.err.lines().find_map(wording_slip);
        assert!(slip.is_none(), "{}: {}\n{}", done.what, slip.unwrap_or_default(), done.err);
        done
    }

    /// Returns itself after asserting that the exit code is 0.
    #[track_caller]
    pub fn ok(self) -> Done {
        assert_eq!(self.code, Some(0), "{}\n{}\n{}", self.what, self.out, self.err);
        self
    }

    /// Returns itself after asserting a clean failure: one error of this kind, with the exit code of the kind, a hint and
    /// all `names`. A name is an option, key, file, layer, shape or number, and not the wording of the message.
    #[track_caller]
    pub fn fails(self, kind: &str, names: &[&str]) -> Done {
        let all = format!("{}\n{}\n{}", self.what, self.out, self.err);
        // `launch` prefixes the lines of its processes, which have errors of their own.
        assert_eq!(self.err.lines().filter(|line| line.starts_with("error[")).count(), 1, "{all}");
        assert!(!self.err.contains("panicked") && !self.err.contains('\x1b'), "{all}");
        let error = self.error();
        assert_eq!((error.kind.as_str(), self.code), (kind, Some(exit_code(kind))), "{all}");
        assert!(!error.hint.is_empty(), "no hint in:\n{all}");
        for name in names {
            let lacks = error.lacks(name);
            assert!(lacks.is_none(), "{} in:\n{all}", lacks.unwrap_or_default());
        }
        self
    }

    /// Returns itself after asserting the wording of the error, where wording is what is tested and [`Done::fails`] cannot
    /// assert it. `architecture::error_prose` counts the uses.
    #[track_caller]
    pub fn says(self, wording: &str) -> Done {
        assert!(self.err.contains(wording), "expected `{wording}` in:\n{}\n{}", self.what, self.err);
        self
    }

    /// Returns the error of a failed run.
    #[track_caller]
    pub fn error(&self) -> ShownError {
        ShownError::parse(&self.err).unwrap_or_else(|| panic!("no error: {}\n{}", self.what, self.err))
    }

    /// Parses standard output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|e| panic!("{e}: {}\n{}\n{}", self.what, self.out, self.err))
    }
}
