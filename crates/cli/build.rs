//! Sets `SYSTOLE_COMMIT` for `systole --version`: the variable itself, the commit of a packed crate, or, in release
//! builds, of the checkout. Debug builds ask no git, so that a commit does not rebuild them.

#![allow(clippy::print_stdout, reason = "how a build script talks to cargo")]

use std::path::Path;
use std::process::Command;

const VARIABLE: &str = "SYSTOLE_COMMIT";
/// Digits of a shown commit.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=build.rs");
    let given = std::env::var(VARIABLE).ok().filter(|commit| !commit.is_empty());
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = given.or_else(packed).or_else(|| if is_release { checked_out() } else { None });
    if let Some(commit) = commit {
        println!("cargo::rustc-env={VARIABLE}={}", commit.get(..DIGITS).unwrap_or(&commit));
    }
}

/// Reads the commit from the file that `cargo package` adds.
fn packed() -> Option<String> {
    let text = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\":")?;
    rest.split('"').nth(1).map(String::from)
}

/// Asks git for the commit, if this is the checkout of this project and not a copy in another project's repository.
fn checked_out() -> Option<String> {
    let args = ["rev-parse", "--show-prefix", "--git-path", "logs/HEAD", "HEAD"];
    let done = Command::new("git").args(args).output().ok().filter(|done| done.status.success())?;
    let text = String::from_utf8(done.stdout).ok()?;
    let mut lines = text.lines();
    let (folder, log, commit) = (lines.next()?, lines.next()?, lines.next()?);
    if folder != "crates/cli/" {
        return None;
    }
    // A file that does not exist would rebuild the program every time.
    if Path::new(log).is_file() {
        println!("cargo::rerun-if-changed={log}");
    }
    Some(commit.into())
}
