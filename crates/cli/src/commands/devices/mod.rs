//! `systole devices`: lists the CPU, accelerators and PJRT plugins of this machine.

mod watch;

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::render::screen::Screen;
use clap::Args;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use systole_devices::find_plugin;
use systole_ir::Result;
use systole_pjrt::{AcceleratorPlatform, Plugin, Search, TpuClusterResolver, device_nodes};
use systole_runtime::backend;
use watch::watch;

#[derive(Args)]
pub(crate) struct DevicesArgs {
    /// Show load and memory of CPU, GPUs and TPUs every SECONDS, until Ctrl-C
    ///
    /// GPUs: from nvidia-smi. TPUs: from libtpu's metrics service. With --json, prints one line per interval.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = seconds)]
    watch: Option<f64>,
    /// Stop after N intervals (with --watch)
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let known = text.parse::<f64>().ok().filter(|s| (0.05..=86_400.0).contains(s));
    known.ok_or_else(|| "expected a number of seconds from 0.05 to 86400".into())
}

impl RunCommand for DevicesArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        match self.watch {
            Some(seconds) => watch(Duration::from_secs_f64(seconds), self.count, screen),
            None => devices(screen),
        }
    }

    fn only_prints(&self) -> bool {
        true
    }
}

/// Lists the CPU and each platform's devices and plugin. Does not initialize plugins, which can take minutes outside a
/// cloud.
fn devices(screen: &Screen) -> CommandResult {
    let cpu: Vec<String> = backend("cpu")?.devices().into_iter().map(|d| d.description).collect();
    let xla = find_plugin(AcceleratorPlatform::Xla, None);
    let xla = xla.plugin().map(|p| (p, version(&p.path)));
    cpu.iter().for_each(|d| screen.line(format!("cpu   {d}")));
    screen.line(match &xla {
        Some((place, Ok(version))) => {
            format!("      --device xla: {} ({}), PJRT {version}", place.path.display(), place.rule)
        }
        Some((place, Err(why))) => format!("      --device xla: {}: {why}", place.path.display()),
        None => "      --device xla: no plugin; install it with `systole setup xla-cpu`".into(),
    });
    let mut objects = vec![json!({
        "platform": "cpu", "devices": cpu,
        "xla_plugin": xla.as_ref().map(|(p, _)| p.path.display().to_string()),
        "pjrt_version": xla.as_ref().and_then(|(_, v)| v.as_ref().ok()),
        "error": xla.as_ref().and_then(|(_, v)| v.as_ref().err()),
    })];
    for platform in AcceleratorPlatform::ACCELERATORS {
        let nodes = device_nodes(platform);
        let search = find_plugin(platform, None);
        let version = search.plugin().map(|p| version(&p.path));
        let shown: Vec<String> = nodes.iter().map(|n| n.display().to_string()).collect();
        let devices = if shown.is_empty() { "no device".into() } else { shown.join(", ") };
        screen.line(format!("{:<5} {devices}", platform.name()));
        show_plugin(&search, version.as_ref(), screen);
        let cluster = (platform == AcceleratorPlatform::Tpu).then(what_the_cloud_says);
        cluster.iter().flatten().for_each(|line| screen.line(format!("      {line}")));
        objects.push(json!({
            "platform": platform.name(), "devices": shown,
            "cluster": cluster, "plugin": search.plugin().map(|p| p.path.display().to_string()),
            "pjrt_version": version.as_ref().and_then(|v| v.as_ref().ok()),
            "error": version.as_ref().and_then(|v| v.as_ref().err()),
            "looked_at": search.paths.iter().map(|p| p.to_string()).collect::<Vec<_>>(),
        }));
    }
    if screen.json {
        screen.object(&Value::from(objects));
    }
    Ok(0)
}

/// Describes the TPU according to the machine's environment.
fn what_the_cloud_says() -> Vec<String> {
    TpuClusterResolver::new("").map_or_else(|e| vec![e.to_string()], |tpu| tpu.explain())
}

fn show_plugin(search: &Search, version: Option<&Result<String, String>>, screen: &Screen) {
    match (search.plugin(), version) {
        (Some(place), Some(Ok(version))) => {
            screen.line(format!("      plugin {} ({}), PJRT {version}", place.path.display(), place.rule));
        }
        (Some(place), Some(Err(why))) => screen.line(format!("      plugin {}: {why}", place.path.display())),
        _ => screen.line("      no plugin; search paths:"),
    }
    if search.plugin().is_none() {
        search.paths.iter().for_each(|p| screen.detail(format!("        {p}")));
    }
}

/// Returns the C API version of a plugin.
pub(crate) fn version(path: &Path) -> Result<String, String> {
    let plugin = Plugin::peek(path).map_err(|e| e.to_string())?;
    let (major, minor) = plugin.version();
    Ok(format!("{major}.{minor}"))
}
