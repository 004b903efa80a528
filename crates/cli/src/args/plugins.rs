//! What the command line tells PJRT plugins: options for their devices, and how much they may write by themselves.

use crate::args::common::CommonArgs;
use std::env;
use std::process::Command;
use systole_ir::{Error, ErrorKind, Result, knobs};
use systole_pjrt::{AcceleratorPlatform, Plugin, device_nodes};

/// Devices behind plugins.
const BEHIND_PLUGINS: [&str; 4] = ["tpu", "cuda", "xla", "pjrt"];

/// XLA's variable for what it writes to standard error: 0 all, 1 warnings, 2 errors, 3 what ends the program.
const XLA_LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";
const ERRORS: &str = "2";

/// The level of our own log from which on plugins write what they like.
const SHOWN_FROM: usize = 2;

/// The devices that were asked for, without a plugin's file: those of the command's own options, else that of `--device`.
fn devices(common: &CommonArgs, own: Option<&str>) -> Vec<String> {
    let usual = || common.device.clone().unwrap_or_else(|| knobs::BACKEND.get());
    let named = own.map_or_else(usual, str::to_string);
    let bare = |name: &str| name.trim().split(':').next().unwrap_or_default().to_string();
    named.split(',').map(bare).collect()
}

/// Passes the options on, after those of the environment.
pub(crate) fn set_options(common: &CommonArgs, own: Option<&str>) -> Result<()> {
    let Some(first) = common.plugin_options.first() else { return Ok(()) };
    let devices = devices(common, own);
    if !devices.iter().any(|d| BEHIND_PLUGINS.contains(&d.as_str())) {
        let device = devices.join(" and ");
        let what = match device.as_str() {
            "auto" => "the option is for a plugin, and no device behind one is named".into(),
            _ => match devices.len() {
                1 => format!("{device} is behind no plugin that takes options"),
                _ => format!("{device} are behind no plugin that takes options"),
            },
        };
        let e = Error::new(ErrorKind::Config, what);
        return Err(e
            .at(format!("--plugin-option {first}"))
            .hint("name the device too: --device tpu, cuda, xla or pjrt:FILE"));
    }
    let set = knobs::PJRT_OPTIONS.get();
    let set = set.split(if set.contains('\n') { '\n' } else { ',' });
    let all = set.chain(common.plugin_options.iter().map(String::as_str));
    // In lines of their own: a value may have commas.
    knobs::override_value(knobs::PJRT_OPTIONS, all.flat_map(|option| [option, "\n"]).collect::<String>());
    Ok(())
}

/// Starts this program again with XLA's warnings off, where a plugin will be loaded and the user has not said how much it
/// may write: XLA reads that while it is loaded, and a running program cannot safely change its environment.
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
        // It comes back only where it failed, and then there is more to read.
        let _ = again.args(args).env(XLA_LEVEL, ERRORS).exec();
    }
}

/// Where the warnings of a plugin that was loaded were left out: how to see them.
pub(crate) fn what_was_left_out(is_asked: bool) -> Option<&'static str> {
    let quiet = env::var_os(XLA_LEVEL).is_some_and(|level| level == ERRORS);
    (quiet && !is_asked && Plugin::any_loaded())
        .then_some("the plugin's warnings are left out; -vv shows them")
}

/// Whether plugins may write what they like.
pub(crate) fn shows_warnings(common: &CommonArgs) -> bool {
    log_level(common) >= SHOWN_FROM
}

fn log_level(common: &CommonArgs) -> usize {
    knobs::LOG.get_usize().max(common.verbose.into())
}

/// Accelerators that are not here are refused before a plugin is loaded for them.
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

/// Refuses a device whose name nobody knows, before anything is read for it.
pub(crate) fn check_device(common: &CommonArgs) -> Result<()> {
    let Some(device) = &common.device else { return Ok(()) };
    let known = systole_runtime::provider_names();
    let name = device.split(':').next().unwrap_or_default();
    if name == "auto" || known.contains(&name) {
        return Ok(());
    }
    let told: Vec<&str> = ["auto"].into_iter().chain(known.into_iter().filter(|n| *n != "null")).collect();
    let e = Error::new(ErrorKind::Config, format!("there is no device `{name}`"));
    Err(e.at(format!("--device {device}")).hint(systole_nn::did_you_mean::suggestion(name, &told)))
}
