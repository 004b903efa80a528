//! `systole env`: prints version, system, CPU, devices, caches and variables for a bug report.
//!
//! Prints no secrets: of variables that may contain secrets it prints only that they are set, and the home directory is
//! `~`.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::commands::devices::version as plugin_version;
use crate::render::screen::{Screen, number_of, shown_value};
use crate::render::version;
use clap::Args;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use systole_devices::find_plugin;
use systole_ir::knobs;
use systole_pjrt::{AcceleratorPlatform, device_nodes};
use systole_runtime::{backend, cache_folder};

#[derive(Args)]
pub(crate) struct EnvArgs {}

impl RunCommand for EnvArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let told = json!({
            "systole": program(),
            "system": system(),
            "processor": processor()?,
            "devices": devices(),
            "caches": caches(),
            "variables": variables(),
        });
        if screen.json {
            screen.object(&told);
            return Ok(0);
        }
        for (section, values) in told.as_object().into_iter().flatten() {
            screen.line(section);
            let values = values.as_object().into_iter().flatten();
            let lines: Vec<String> =
                values.map(|(name, v)| format!("  {name:<22} {}", in_words(v))).collect();
            screen.line(if lines.is_empty() { "  none".into() } else { lines.join("\n") });
        }
        Ok(0)
    }
}

fn in_words(value: &Value) -> String {
    match value {
        Value::Null => "unknown".into(),
        Value::String(text) => text.clone(),
        Value::Array(all) if all.is_empty() => "none".into(),
        Value::Array(all) => all.iter().map(in_words).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn program() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": version::COMMIT,
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "features": version::features(),
    })
}

fn system() -> Value {
    let read = |path: &str| fs::read_to_string(path).ok();
    let quoted = |line: &str| line.trim_matches('"').to_string();
    let name = read("/etc/os-release")
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=").map(quoted)));
    let total = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    json!({
        "os": name.unwrap_or_else(|| std::env::consts::OS.into()),
        "kernel": read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_string()),
        "architecture": std::env::consts::ARCH,
        "memory": total.map(|kib| mib(kib << 10)),
        "available": systole_cpu::available_memory().map(|bytes| mib(bytes as u64)),
    })
}

fn processor() -> systole_ir::Result<Value> {
    let told = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = told.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_string())
    };
    // Only the flags that affect kernel selection.
    let matters =
        |flag: &&str| ["avx", "fma", "f16c", "amx", "sse4", "bmi"].iter().any(|s| flag.starts_with(s));
    let flags =
        field("flags").map(|all| all.split(' ').filter(matters).map(String::from).collect::<Vec<_>>());
    let engine: Vec<String> = backend("cpu")?.devices().into_iter().map(|d| d.description).collect();
    Ok(json!({
        "model": field("model name"),
        "cores": std::thread::available_parallelism().map(usize::from).ok(),
        "engine": engine,
        "features": flags,
    }))
}

/// Lists device nodes and plugins of each platform. Loads plugins only to read their version.
fn devices() -> Value {
    let mut all = Map::new();
    for platform in AcceleratorPlatform::ACCELERATORS.into_iter().chain([AcceleratorPlatform::Xla]) {
        let nodes = device_nodes(platform).into_iter().map(|n| n.display().to_string());
        let plugin = find_plugin(platform, None);
        let plugin = plugin.plugin().map(|place| {
            let version =
                plugin_version(&place.path).map_or_else(|why| why, |version| format!("PJRT {version}"));
            format!("plugin {} ({version})", homely(&place.path.display().to_string()))
        });
        let told: Vec<String> = nodes.chain(plugin).collect();
        all.insert(platform.name().into(), told.into());
    }
    all.into()
}

/// Lists what Systole keeps outside run folders: the cache folder and the size of each entry in it. Deleting it loses only
/// downloads and compiled programs.
fn caches() -> Value {
    let Some(folder) = cache_folder() else { return json!({}) };
    let mut all = Map::new();
    all.insert("folder".into(), homely(&folder.display().to_string()).into());
    let mut entries: Vec<PathBuf> =
        fs::read_dir(&folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        let (files, bytes) = usage(&path);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.insert(name, format!("{}, {} MiB", number_of(files, "file"), bytes >> 20).into());
    }
    all.into()
}

/// Number and bytes of the files below a path; links are not followed.
fn usage(path: &Path) -> (usize, u64) {
    match fs::symlink_metadata(path) {
        Ok(data) if data.is_dir() => {
            let below = fs::read_dir(path).into_iter().flatten().flatten().map(|e| usage(&e.path()));
            below.fold((0, 0), |(files, bytes), (f, b)| (files + f, bytes + b))
        }
        Ok(data) => (1, data.len()),
        Err(_) => (0, 0),
    }
}

/// Lists the variables that are set, in the order of `systole knobs`.
fn variables() -> Value {
    const PRIVATE: [&str; 4] = ["TPU_NAME", "TPU_PROJECT", "TPU_WORKER_HOSTNAMES", "COLAB_TPU_ADDR"];
    let mut all = Map::new();
    for knob in knobs::KNOBS.iter().filter(|knob| knob.get() != knob.default) {
        all.insert(knob.name.into(), homely(&shown_value(knob)).into());
    }
    for (name, _) in knobs::TPU_VARIABLES {
        if let Some(value) = knobs::variable(name) {
            let told = if PRIVATE.contains(name) { "set".into() } else { homely(&value) };
            all.insert((*name).into(), told.into());
        }
    }
    for (name, _) in knobs::CLOUD_VARIABLES.iter().filter(|(name, _)| *name != "HOME") {
        if knobs::variable(name).is_some() {
            all.insert((*name).into(), "set".into());
        }
    }
    all.into()
}

/// Replaces the home directory, whose name often identifies the user, by `~`.
fn homely(text: &str) -> String {
    match knobs::variable("HOME").filter(|home| home.len() > 1) {
        Some(home) => text.replace(&home, "~"),
        None => text.into(),
    }
}
