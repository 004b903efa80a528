//! Passes command-line options to PJRT plugins and controls how much they log.

use crate::args::common::CommonArgs;
use std::env;
use std::process::Command;
use systole_ir::{Error, ErrorKind, Result, err, knobs};
use systole_pjrt::{AcceleratorPlatform, Plugin, device_nodes};

/// Devices that need a PJRT plugin.
const BEHIND_PLUGINS: [&str; 4] = ["tpu", "cuda", "xla", "pjrt"];

/// XLA's environment variable for its log level on standard error: 0 all, 1 warnings, 2 errors, 3 fatal errors.
const XLA_LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";
const ERRORS: &str = "2";

/// Systole log level from which plugins may log everything.
const SHOWN_FROM: usize = 2;

/// Device names without plugin files: from the command's own options, otherwise from `--device`.
fn devices(common: &CommonArgs, own: Option<&str>) -> Vec<String> {
    let usual = || common.device.clone().unwrap_or_else(|| knobs::BACKEND.get());
    let named = own.map_or_else(usual, str::to_string);
    let bare = |name: &str| name.trim().split(':').next().unwrap_or_default().to_string();
    named.split(',').map(bare).collect()
}

/// Appends the plugin options to those of the environment.
pub(crate) fn set_options(common: &CommonArgs, own: Option<&str>) -> Result<()> {
    let Some(first) = common.plugin_options.first() else { return Ok(()) };
    let devices = devices(common, own);
    if !devices.iter().any(|d| BEHIND_PLUGINS.contains(&d.as_str())) {
        let device = devices.join(" and ");
        let what = match device.as_str() {
            "auto" => "the option needs a plugin device, but no device is named".into(),
            _ => match devices.len() {
                1 => format!("{device} is not a plugin device and takes no options"),
                _ => format!("{device} are not plugin devices and take no options"),
            },
        };
        let e = Error::new(ErrorKind::Config, what);
        return Err(e
            .at(format!("--plugin-option {first}"))
            .hint_command("plugin options need a device: add --device tpu, cuda, xla or pjrt:FILE"));
    }
    let set = knobs::PJRT_OPTIONS.get();
    let set = set.split(if set.contains('\n') { '\n' } else { ',' });
    let all = set.chain(common.plugin_options.iter().map(String::as_str));
    // One option per line, because a value may contain commas.
    knobs::override_value(knobs::PJRT_OPTIONS, all.flat_map(|option| [option, "\n"]).collect::<String>());
    Ok(())
}

/// Re-executes this program with XLA's warnings off, if a plugin will be loaded and the user set no log level.
///
/// XLA reads the variable while the plugin is loaded, and a running program cannot safely change its environment.
pub(crate) fn quieten(common: &CommonArgs, own: Option<&str>) {
    let loads = || devices(common, own).iter().any(|device| will_load(device));
    if env::var_os(XLA_LEVEL).is_some() || shows_warnings(common) || !loads() {
        return;
    }
    let Ok(program) = env::current_exe() else { return };
    let mut args = env::args_os();
    let mut again = Command::new(program);
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        if let Some(called) = args.next() {
            again.arg0(called);
        }
        // `exec` returns only if it failed; then the warnings stay visible.
        let _ = again.args(args).env(XLA_LEVEL, ERRORS).exec();
    }
}

/// Returns a note on how to see the warnings of a loaded plugin, if they were hidden.
pub(crate) fn what_was_left_out(is_asked: bool) -> Option<&'static str> {
    let quiet = env::var_os(XLA_LEVEL).is_some_and(|level| level == ERRORS);
    (quiet && !is_asked && Plugin::any_loaded())
        .then_some("the plugin's warnings are hidden; pass -vv to show them")
}

/// Whether plugins may log everything.
pub(crate) fn shows_warnings(common: &CommonArgs) -> bool {
    log_level(common) >= SHOWN_FROM
}

fn log_level(common: &CommonArgs) -> usize {
    knobs::LOG.get_usize().max(common.verbose.into())
}

/// Whether the device makes the program load a plugin. Absent accelerators are rejected before a plugin is loaded.
fn will_load(device: &str) -> bool {
    let is_here = |p: &AcceleratorPlatform| !device_nodes(*p).is_empty();
    match device {
        "auto" => AcceleratorPlatform::ACCELERATORS.iter().any(is_here),
        _ => match AcceleratorPlatform::ACCELERATORS.iter().find(|p| p.name() == device) {
            Some(platform) => is_here(platform),
            None => BEHIND_PLUGINS.contains(&device),
        },
    }
}

/// Rejects an unknown device name before any input is read.
pub(crate) fn check_device(common: &CommonArgs) -> Result<()> {
    let Some(device) = &common.device else { return Ok(()) };
    let known = systole_runtime::provider_names();
    let name = device.split(':').next().unwrap_or_default();
    if name == "auto" || known.contains(&name) {
        return Ok(());
    }
    let told: Vec<&str> = ["auto"].into_iter().chain(known.into_iter().filter(|n| *n != "null")).collect();
    let e = err!(Config, "unknown device `{name}`");
    Err(e.at(format!("--device {device}")).hint_command(systole_nn::did_you_mean::suggestion(name, &told)))
}
