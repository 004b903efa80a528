//! `systole selftest`: checks that a device computes what the interpreter and the CPU compute, and writes a report file
//! to share.
//!
//! A child process does the work (`run_checks.rs`) and reports results as JSON lines: an accelerator's library may abort or
//! hang the process, and the report then names the check that was running.

mod args;
mod model_checks;
mod protocol;
mod run_checks;

pub(crate) use args::SelftestArgs;

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::render::screen::{Screen, quoted};
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Result, err, knobs};
use systole_nn::did_you_mean::nearest_three;

/// Number of failures printed; the report has all.
const SHOWN: usize = 10;

impl RunCommand for SelftestArgs {
    fn run(self, common: &CommonArgs, screen: &Screen) -> CommandResult {
        self.check_ops().map_err(CommandError::usage)?;
        if self.here {
            run_checks::run(&self, screen)?;
            return Ok(0);
        }
        let device = common.device.clone().unwrap_or_else(|| knobs::BACKEND.get());
        let scrub = Anonymizer::of(&device);
        let short = device.split(':').next().unwrap_or(&device).to_string();
        let path = self.report.clone().unwrap_or_else(|| format!("systole-selftest-{short}.json").into());
        let found = watch(&self, common, screen)?;
        let report = scrub.value(report(&short, &found));
        let text = serde_json::to_string_pretty(&report)
            .map_err(|e| err!(Bug, "cannot serialize the report").because(e.to_string()))?;
        write_atomically(&OsFileSystem, &path, &[text.as_bytes(), b"\n"])?;
        show(&report, &path, screen);
        if screen.json {
            screen.object(&report);
        }
        Ok(u8::from(report["passed"] != true))
    }

    fn starts_children(&self) -> bool {
        !self.here
    }
}

impl SelftestArgs {
    /// Rejects unknown operations before the device is opened.
    fn check_ops(&self) -> Result<()> {
        let names: Vec<&str> = run_checks::operations().map(|entry| entry.name).collect();
        match self.ops.iter().find(|name| !names.contains(&name.as_str())) {
            Some(name) => Err(err!(Config, "unknown operation `{name}`")
                .at("--ops")
                .hint_command(nearest_three(name, &names, "systole ops"))),
            None => Ok(()),
        }
    }
}

/// Results received from the child process.
#[derive(Default)]
struct ChildOutput {
    sections: Map<String, Value>,
    failures: Vec<Value>,
    /// The check that is running.
    now: String,
}

/// Starts the child process, shows its progress and collects its results.
fn watch(args: &SelftestArgs, common: &CommonArgs, screen: &Screen) -> Result<ChildOutput> {
    let lost = |why: String| err!(Io, "cannot start the child process").because(why);
    let program = std::env::current_exe().map_err(|e| lost(e.to_string()))?;
    let mut child = Command::new(program);
    child.args(["selftest", "--here", "--steps", &args.steps.to_string()]);
    child.args(["--batch-size", &args.batch_size.to_string()]);
    if !args.ops.is_empty() {
        child.args(["--ops", &args.ops.join(",")]);
    }
    child.args(args.size.map(|size| format!("--size={}", size.name())));
    common.pass_on(&mut child);
    // Thousands of small programs are compiled once each; caching them would evict other programs.
    child.env(knobs::COMPILE_CACHE.name, "off");
    let mut child =
        child.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|e| lost(e.to_string()))?;
    let lines = lines_of(&mut child)?;
    let mut found = ChildOutput { now: "starting".into(), ..ChildOutput::default() };
    let limit = Duration::from_secs(args.time_limit);
    loop {
        match lines.recv_timeout(limit) {
            Ok(line) => found.add(&line, screen),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                let _ = child.wait();
                found.fail(format!("no check finished within {} s", args.time_limit));
                return Ok(found);
            }
        }
    }
    let status = child.wait().map_err(|e| lost(e.to_string()))?;
    if !status.success() && found.failures.is_empty() {
        found.fail(format!("the child process ended: {status}"));
    }
    Ok(found)
}

/// Reads the child's output lines on a thread, so that a hanging child can be abandoned.
fn lines_of(child: &mut Child) -> Result<Receiver<String>> {
    let (send, lines) = channel();
    let out = child.stdout.take();
    let read = move || {
        for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(std::io::Result::ok)
        {
            if send.send(line).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new()
        .name("systole-selftest".into())
        .spawn(read)
        .map_err(|e| err!(Io, "cannot start a thread for the self-test").because(e.to_string()))?;
    Ok(lines)
}

impl ChildOutput {
    fn add(&mut self, line: &str, screen: &Screen) {
        let Ok(Value::Object(mut told)) = serde_json::from_str(line) else { return };
        if let Some(Value::String(what)) = told.remove(protocol::BEGIN) {
            self.now = what;
        }
        if let Some(failure) = told.remove(protocol::FAILURE) {
            self.failures.push(failure);
        }
        if let (Some(Value::String(name)), Some(result)) =
            (told.remove(protocol::SECTION), told.remove("result"))
        {
            let summary = result["summary"].as_str().unwrap_or_default();
            screen.detail(format!("{name}: {summary}"));
            self.sections.insert(name, result);
        }
    }

    fn fail(&mut self, why: String) {
        self.failures.push(json!({"check": self.now, "what": why}));
    }
}

fn report(device: &str, found: &ChildOutput) -> Value {
    let passed =
        found.failures.is_empty() && run_checks::SECTIONS.iter().all(|s| found.sections.contains_key(*s));
    let mut summary = vec![format!(
        "Systole {} selftest on {device}: {}",
        env!("CARGO_PKG_VERSION"),
        if passed { "passed" } else { "FAILED" }
    )];
    let line =
        |(name, result): (&String, &Value)| format!("{name}: {}", result["summary"].as_str().unwrap_or(""));
    summary.extend(found.sections.iter().map(line));
    summary.extend(
        run_checks::SECTIONS
            .iter()
            .filter(|s| !found.sections.contains_key(**s))
            .map(|s| format!("{s}: not reached")),
    );
    json!({
        "summary": summary, "passed": passed, "device": device,
        "systole": env!("CARGO_PKG_VERSION"), "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "results": found.sections, "failures": found.failures,
    })
}

fn show(report: &Value, path: &Path, screen: &Screen) {
    let failures = report["failures"].as_array().map_or(&[][..], Vec::as_slice);
    for failure in failures.iter().take(SHOWN) {
        let text = |key: &str| failure[key].as_str().unwrap_or_default().to_string();
        screen.line(format!("FAILED {}: {}", text("check"), text("what")));
    }
    if failures.len() > SHOWN {
        screen.line(format!("and {} more", failures.len() - SHOWN));
    }
    screen.line(report["summary"][0].as_str().unwrap_or_default());
    screen.line(format!("Report (without paths and host name): {}", quoted(path)));
}

/// Replaces paths and the host name in the report by placeholders.
struct Anonymizer(Vec<(String, String)>);

impl Anonymizer {
    fn of(device: &str) -> Anonymizer {
        let mut taken = Vec::new();
        if let Some((_, plugin)) = device.split_once(':') {
            let name =
                Path::new(plugin).file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
            taken.push((plugin.to_string(), name));
        }
        let folders = [std::env::current_dir().ok(), std::env::home_dir(), Some(std::env::temp_dir())];
        let names = ["FOLDER", "HOME", "TEMP"];
        for (folder, name) in folders.into_iter().zip(names) {
            let folder = folder.map_or(String::new(), |f| f.display().to_string());
            taken.push((folder, name.into()));
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        taken.push((host.trim().to_string(), "HOST".into()));
        // A root directory or an empty name would match everywhere.
        taken.retain(|(from, _)| from.len() > 2);
        Anonymizer(taken)
    }

    fn text(&self, text: &str) -> String {
        self.0.iter().fold(text.to_string(), |text, (from, to)| text.replace(from.as_str(), to))
    }

    fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|v| self.value(v)).collect(),
            Value::Object(map) => map.into_iter().map(|(k, v)| (k, self.value(v))).collect(),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_no_folder() {
        let scrub = Anonymizer::of("pjrt:/opt/secret/libplugin.so");
        let home = std::env::current_dir().unwrap();
        let text = format!("cannot load /opt/secret/libplugin.so from {}/x", home.display());
        let value = scrub.value(json!([{"what": text}]));
        let shown = value.to_string();
        assert!(!shown.contains("secret") && !shown.contains(&home.display().to_string()), "{shown}");
        assert!(shown.contains("libplugin.so"), "{shown}");
    }

    #[test]
    fn what_a_child_did_not_reach_is_no_success() {
        let found = ChildOutput { now: "op add".into(), ..ChildOutput::default() };
        let o = report("cpu", &found);
        assert_eq!(o["passed"], false);
        assert!(o["summary"][1].as_str().unwrap().contains("not reached"), "{o}");
    }
}
