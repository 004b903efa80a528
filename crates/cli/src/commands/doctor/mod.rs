//! `systole doctor`: diagnoses missing CPU features, an old glibc, and unusable TPUs and GPUs, and suggests fixes.

mod glibc;
mod local_system;

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::commands::devices::version;
use crate::render::screen::{Screen, number_of};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use systole_devices::{compile_cache, find_plugin};
use systole_ir::knobs;
use systole_pjrt::{
    AcceleratorPlatform, AheadCompiler, TpuClusterResolver, device_nodes, refuse_retired, sys,
};
use systole_runtime::{AotCompiler, AotRequest, AotTopology};

#[derive(Args)]
pub(crate) struct DoctorArgs {}

impl RunCommand for DoctorArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        doctor(screen)
    }
}

/// Result of one check.
struct DoctorCheck {
    subject: &'static str,
    said: String,
    /// Command that fixes the problem, if there is one.
    mend: Option<String>,
}

/// Prints each check with a fix. Exits with 1 if a present accelerator is unusable.
fn doctor(screen: &Screen) -> CommandResult {
    let mut findings = vec![local_system::cpu(), local_system::glibc()];
    findings.extend(variables());
    for platform in AcceleratorPlatform::ACCELERATORS {
        findings.extend(nodes(platform));
        findings.push(plugin(platform));
    }
    findings.push(plugin(AcceleratorPlatform::Xla));
    findings.extend(cluster());
    findings.push(cache());
    let lock = std::env::temp_dir().join("libtpu_lockfile");
    findings.push(lock_file(&lock, &device_nodes(AcceleratorPlatform::Tpu)));
    findings.push(metadata());
    findings.push(compiler());
    let blocking = AcceleratorPlatform::ACCELERATORS
        .iter()
        .any(|p| !device_nodes(*p).is_empty() && find_plugin(*p, None).plugin().is_none());
    if screen.json {
        let object = |f: &DoctorCheck| json!({"subject": f.subject, "said": f.said, "mend": f.mend});
        screen.object(&findings.iter().map(object).collect::<Value>());
        return Ok(u8::from(blocking));
    }
    for f in &findings {
        let mark = if f.mend.is_none() { "ok  " } else { "look" };
        screen.line(format!("{mark} {:<20} {}", f.subject, f.said));
        if let Some(mend) = &f.mend {
            screen.line(format!("     {:<20} try: {mend}", ""));
        }
    }
    Ok(u8::from(blocking))
}

/// Checks the environment variables that plugins and clouds read.
fn variables() -> Vec<DoctorCheck> {
    let set = knobs::TPU_VARIABLES.iter().filter_map(|(name, _)| Some((*name, knobs::variable(name)?)));
    let finding = |(name, value): (&'static str, String)| {
        let missing = name == "TPU_LIBRARY_PATH" && !Path::new(&value).is_file();
        let retired = matches!(name, "COLAB_TPU_ADDR" | "TPU_NAME") && refuse_retired(&value).is_err();
        let mend = match (missing, retired) {
            (true, _) => Some(format!("unset {name}   # the file does not exist")),
            (_, true) => Some(format!("unset {name}   # TPU nodes with an address are retired")),
            _ => None,
        };
        DoctorCheck { subject: name, said: value, mend }
    };
    let mut found: Vec<DoctorCheck> = set.map(finding).collect();
    let ours = knobs::PJRT_PLUGIN.get();
    if !ours.is_empty() {
        let mend = (!Path::new(&ours).is_file())
            .then(|| format!("unset {}   # the file does not exist", knobs::PJRT_PLUGIN.name));
        found.push(DoctorCheck { subject: knobs::PJRT_PLUGIN.name, said: ours, mend });
    }
    found
}

/// Checks the TPU environment of the cloud for contradictions.
fn cluster() -> Vec<DoctorCheck> {
    let subject = "TPU cluster";
    let tpu = match TpuClusterResolver::new("") {
        Ok(tpu) => tpu,
        Err(e) => {
            let mend = e.hint_text().map(String::from);
            return vec![DoctorCheck { subject, said: e.what().into(), mend }];
        }
    };
    let mut found = vec![DoctorCheck { subject, said: tpu.facts().join("; "), mend: None }];
    found.extend(tpu.doubts.into_iter().map(|d| DoctorCheck { subject, said: d.what, mend: Some(d.mend) }));
    found
}

/// Reports the compile cache and how to clear it.
fn cache() -> DoctorCheck {
    let subject = "compile cache";
    match compile_cache() {
        Ok(None) => DoctorCheck { subject, said: "off".into(), mend: None },
        Ok(Some(cache)) => {
            let ((programs, bytes), folder) = (cache.usage(), cache.folder().display());
            let programs = number_of(programs, "program");
            let said = format!("{programs}, {} MiB; clear it with `rm -r {folder}`", bytes >> 20);
            DoctorCheck { subject, said, mend: None }
        }
        Err(e) => {
            let mend = Some(format!("unset {}", knobs::COMPILE_CACHE.name));
            DoctorCheck { subject, said: e.to_string(), mend }
        }
    }
}

/// Checks that this user may open the device nodes.
fn nodes(platform: AcceleratorPlatform) -> Vec<DoctorCheck> {
    let subject = match platform {
        AcceleratorPlatform::Tpu => "TPU devices",
        AcceleratorPlatform::Cuda => "GPU devices",
        AcceleratorPlatform::Xla => "XLA on the CPU",
    };
    let nodes = device_nodes(platform);
    if nodes.is_empty() {
        return vec![DoctorCheck { subject, said: "none on this machine".into(), mend: None }];
    }
    let finding = |path: &Path| {
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(path);
        let mend = opened.as_ref().err().map(|_| format!("sudo chmod a+rw {}", path.display()));
        let state = opened.map_or_else(|e| e.to_string(), |_| "accessible".into());
        DoctorCheck { subject, said: format!("{}: {state}", path.display()), mend }
    };
    nodes.iter().map(|n| finding(n)).collect()
}

fn plugin(platform: AcceleratorPlatform) -> DoctorCheck {
    let subject = match platform {
        AcceleratorPlatform::Tpu => "TPU plugin",
        AcceleratorPlatform::Cuda => "GPU plugin",
        AcceleratorPlatform::Xla => "XLA's CPU plugin",
    };
    let search = find_plugin(platform, None);
    // The TPU plugin is useful without a TPU (ahead-of-time compilation); a GPU plugin only with a GPU; XLA only if it
    // is installed.
    let wanted = match platform {
        AcceleratorPlatform::Tpu => true,
        AcceleratorPlatform::Cuda => !device_nodes(platform).is_empty(),
        AcceleratorPlatform::Xla => search.plugin().is_some(),
    };
    let setup = wanted.then(|| format!("systole setup {}", platform.setup()));
    let Some(place) = search.plugin() else {
        let said = match search.paths.last() {
            _ if platform == AcceleratorPlatform::Xla => "none; needed only for `--device xla`".into(),
            Some(named) if search.paths.len() == 1 => named.to_string(),
            _ => format!("not found in {} paths (`systole devices` lists them)", search.paths.len()),
        };
        return DoctorCheck { subject, said, mend: setup };
    };
    match version(&place.path) {
        Ok(version) => {
            let (major, minor) = sys::API_VERSION;
            let said = format!("{place}, PJRT {version}; Systole supports {major}.{minor}");
            let other_major = version.split('.').next() != Some(&major.to_string());
            DoctorCheck { subject, said, mend: setup.filter(|_| other_major) }
        }
        Err(why) => DoctorCheck { subject, said: why, mend: setup },
    }
}

/// Checks libtpu's lock file: one process at a time owns the TPUs, and libtpu does not remove the file.
fn lock_file(path: &Path, nodes: &[PathBuf]) -> DoctorCheck {
    let subject = "libtpu's lock file";
    if !path.is_file() || nodes.is_empty() {
        return DoctorCheck { subject, said: "not present or not needed".into(), mend: None };
    }
    let path = path.display();
    match holder(nodes) {
        Some(process) => DoctorCheck {
            subject,
            said: format!("process {process} uses the TPU; other programs must wait until it exits"),
            mend: Some(format!("kill {process}   # if it should not be running")),
        },
        None => DoctorCheck {
            subject,
            said: format!("{path} is stale: no program of yours uses the TPU"),
            mend: Some(format!("rm {path}")),
        },
    }
}

/// Returns a process that has one of these files open, among those that this user may inspect.
fn holder(files: &[PathBuf]) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    let mut holding = numbers.filter(|process| {
        let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|file| files.contains(&file))
    });
    holding.next()
}

/// Outside a cloud, libtpu waits for a metadata server that never answers.
fn metadata() -> DoctorCheck {
    let subject = "metadata server";
    let off_cloud = device_nodes(AcceleratorPlatform::Tpu).is_empty();
    let said = match off_cloud {
        true => "no TPU here: `systole compile` stops libtpu from querying it",
        false => "libtpu queries it for the slice of this machine",
    };
    DoctorCheck { subject, said: said.into(), mend: None }
}

/// Compiles a small program in a child process.
fn compiler() -> DoctorCheck {
    let subject = "compiling for a TPU";
    const PROGRAM: &str = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {\n  \
        %y = \"stablehlo.add\"(%x, %x) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>\n  return %y : tensor<8xf32>\n}\n";
    let compiled = || {
        let library = find_plugin(AcceleratorPlatform::Tpu, None).require(AcceleratorPlatform::Tpu)?;
        let mut request = AotRequest::new(PROGRAM, AotTopology::new("v5e", &[1, 1]));
        request.time_limit = Duration::from_secs(60);
        AheadCompiler::new(library)?.compile_ahead(&request)
    };
    match compiled() {
        Ok(report) => {
            // The build, and the StableHLO version that it supports.
            let version: Vec<&str> = report.compiler.lines().skip(1).collect();
            DoctorCheck { subject, said: format!("works; {}", version.join("; ")), mend: None }
        }
        Err(e) => DoctorCheck {
            subject,
            said: e.what().into(),
            mend: Some(e.hint_text().unwrap_or("systole setup tpu").into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_is_stale_where_nobody_has_the_device() {
        let dir = std::env::temp_dir().join(format!("systole-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (lock, node) = (dir.join("libtpu_lockfile"), dir.join("accel0"));
        assert_eq!(lock_file(&lock, std::slice::from_ref(&node)).mend, None);
        std::fs::write(&lock, "").unwrap();
        assert_eq!(lock_file(&lock, &[]).mend, None);
        std::fs::write(&node, "").unwrap();
        let stale = lock_file(&lock, std::slice::from_ref(&node));
        assert!(stale.mend.is_some_and(|m| m.starts_with("rm ")), "{}", stale.said);
        let open = std::fs::File::open(&node).unwrap();
        let used = lock_file(&lock, std::slice::from_ref(&node));
        assert!(used.said.contains(&format!("process {} uses", std::process::id())), "{}", used.said);
        drop(open);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
