//! Checks of this machine's CPU and C library.

use super::DoctorCheck;
use super::glibc::{GlibcVersion, installed, required};
use std::path::PathBuf;
use systole_cpu::Level;
use systole_devices::find_plugin;
use systole_ir::knobs;
use systole_pjrt::AcceleratorPlatform;

/// Checks the CPU features that the fastest kernels need, and `SYSTOLE_ISA`.
pub(super) fn cpu() -> DoctorCheck {
    let next = Level::ALL.into_iter().find(|level| *level > Level::best() && !level.is_available());
    let lacking = next.map(|level| (level, level.missing_features()));
    cpu_check(Level::best(), Level::from_knob().ok(), lacking)
}

/// `chosen`: the level in use, `None` if `SYSTOLE_ISA` names none that works here. `lacking`: the next level and the CPU
/// features that are missing for it.
fn cpu_check(best: Level, chosen: Option<Level>, lacking: Option<(Level, Vec<&'static str>)>) -> DoctorCheck {
    let features = lacking.map_or_else(String::new, |(level, features)| {
        format!("; level {} needs {}", level.name(), features.join(", "))
    });
    let said = format!("kernels of level {}{features}", best.name());
    let slow = best == Level::Portable && cfg!(target_arch = "x86_64");
    let mend = match chosen {
        Some(level) if level == best && slow => Some(
            "use a CPU with AVX2 (x86-64-v3); in a virtual machine, expose the host's CPU (QEMU: -cpu host)"
                .into(),
        ),
        Some(level) if level == best => None,
        _ => Some(format!("unset {}   # it is {}", knobs::ISA.name, knobs::ISA.get())),
    };
    DoctorCheck { subject: "CPU", said, mend }
}

/// Compares this machine's glibc with what this program and the plugins require.
pub(super) fn glibc() -> DoctorCheck {
    let platforms = AcceleratorPlatform::ACCELERATORS.into_iter().chain([AcceleratorPlatform::Xla]);
    let plugins = platforms.filter_map(|platform| Some(find_plugin(platform, None).plugin()?.path.clone()));
    let files = std::env::current_exe().into_iter().chain(plugins);
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    glibc_check(installed(), files.filter_map(|path| Some((name(&path), required(&path)?))).collect())
}

/// `needs`: files and the version that each requires.
fn glibc_check(here: Option<GlibcVersion>, needs: Vec<(String, GlibcVersion)>) -> DoctorCheck {
    let shown = |(major, minor): GlibcVersion| format!("{major}.{minor}");
    let list: Vec<String> =
        needs.iter().map(|(file, version)| format!("{file} requires {}", shown(*version))).collect();
    let subject = "glibc";
    let Some(here) = here else {
        return DoctorCheck { subject, said: "not used by this program".into(), mend: None };
    };
    let said = [vec![shown(here)], list].concat().join("; ");
    let newest = needs.into_iter().filter(|(_, version)| *version > here).max_by_key(|(_, version)| *version);
    let mend = newest.map(|(file, version)| {
        format!("use a system with glibc {} or newer, or an older version of {file}", shown(version))
    });
    DoctorCheck { subject, said, mend }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_cpu_features_are_named() {
        let lacking = Some((Level::Avx2, vec!["avx2", "fma"]));
        let check = cpu_check(Level::Portable, Some(Level::Portable), lacking);
        assert_eq!(check.said, "kernels of level portable; level avx2 needs avx2, fma");
        assert_eq!(check.mend.is_some(), cfg!(target_arch = "x86_64"));
        let check = cpu_check(Level::Amx, Some(Level::Amx), None);
        assert_eq!((check.said.as_str(), check.mend), ("kernels of level amx", None));
        for chosen in [None, Some(Level::Avx2)] {
            let check = cpu_check(Level::Avx512, chosen, None);
            assert!(check.mend.is_some_and(|mend| mend.starts_with("unset SYSTOLE_ISA")));
        }
    }

    #[test]
    fn a_file_for_a_newer_glibc_is_reported() {
        let needs = || vec![("systole".to_string(), (2, 17)), ("libtpu.so".to_string(), (2, 38))];
        let check = glibc_check(Some((2, 36)), needs());
        assert_eq!(check.said, "2.36; systole requires 2.17; libtpu.so requires 2.38");
        let mend = check.mend.unwrap_or_default();
        assert!(mend.contains("glibc 2.38") && mend.contains("libtpu.so"), "{mend}");
        assert_eq!(glibc_check(Some((2, 38)), needs()).mend, None);
        assert_eq!(glibc_check(None, needs()).mend, None);
    }
}
