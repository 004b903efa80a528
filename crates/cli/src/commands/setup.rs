//! `systole setup`: downloads a PJRT plugin with pip, verifies it and moves it to Systole's plugin folder.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::render::screen::Screen;
use clap::{Args, ValueEnum};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use std::process::Command;
use systole_devices::plugin_cache;
use systole_ir::{Error, Result, err, knobs};
use systole_pjrt::{AcceleratorPlatform, Plugin};

#[derive(Args)]
pub(crate) struct SetupArgs {
    /// Platform whose plugin is downloaded
    #[arg(value_enum)]
    platform: SetupPlatform,
    /// Download this version [default: the newest; xla-cpu: one with a known hash]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum SetupPlatform {
    /// Google's libtpu: compiles for absent TPUs, and runs on attached ones
    Tpu,
    /// OpenXLA's CUDA plugin, and NVIDIA's assembler to compile for absent GPUs
    Cuda,
    /// XLA on this computer's CPU, for comparison (`--device xla`)
    #[value(name = "xla-cpu")]
    Xla,
}

/// A pip package: its files and their destinations in the plugin folder.
struct PipPackage {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    /// Version and SHA-256 of the package's single file, if only that version is accepted.
    pinned: Option<(&'static str, &'static str)>,
}

impl PipPackage {
    const fn newest(name: &'static str, files: &'static [(&'static str, &'static str)]) -> PipPackage {
        PipPackage { name, files, pinned: None }
    }

    /// Returns the requirement passed to pip.
    fn wanted(&self, version: Option<&str>) -> Result<String> {
        let version = match (self.pinned, version) {
            (Some((known, _)), Some(other)) if known != other => {
                let e = err!(Config, "the hash of {} {other} is unknown", self.name).at("--version");
                return Err(e.hint_command(format!("remove --version to download and verify {known}")));
            }
            (Some((known, _)), _) => Some(known),
            (None, version) => version,
        };
        Ok(version.map_or(self.name.to_string(), |v| format!("{}=={v}", self.name)))
    }

    /// Whether the files are in the plugin folder already, with the pinned hash.
    fn is_there(&self, cache: &Path) -> bool {
        let right = |(_, to): &(&str, &str)| {
            fs::read(cache.join(to)).is_ok_and(|bytes| self.check(to, &bytes).is_ok())
        };
        self.pinned.is_some() && self.files.iter().all(right)
    }

    /// Checks a file against the pinned hash.
    fn check(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let Some((version, known)) = self.pinned else { return Ok(()) };
        let found: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        if found == known {
            return Ok(());
        }
        let e = err!(Data, "{file} is not the file of {} {version}", self.name);
        Err(e
            .because(format!("the file's SHA-256 is {found}, expected {known}"))
            .hint("download the file again; check which package index pip uses"))
    }
}

/// XLA's CPU client as a plugin, built by the project lammps-jax from the XLA version of the same jaxlib release.
const XLA_CPU: PipPackage = PipPackage {
    name: "lammps-jax-pjrt-cpu",
    files: &[("lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", "xla/pjrt_c_api_cpu_plugin.so")],
    pinned: Some(("0.11.2", "ad1309ac822b1b24d51b7f9947c7c9fa9ef5d67f390584cbc3d1fa2428fed9c2")),
};

/// The first package contains the plugin; `--version` is its version. The plugin searches the others in
/// `../nvidia/cu13`.
fn packages(which: SetupPlatform) -> (AcceleratorPlatform, &'static [PipPackage]) {
    match which {
        SetupPlatform::Tpu => (
            AcceleratorPlatform::Tpu,
            const { &[PipPackage::newest("libtpu", &[("libtpu/libtpu.so", "tpu/libtpu.so")])] },
        ),
        SetupPlatform::Cuda => (
            AcceleratorPlatform::Cuda,
            const {
                &[
                    PipPackage::newest(
                        "jax-cuda13-pjrt",
                        &[("jax_plugins/xla_cuda13/xla_cuda_plugin.so", "cuda/xla_cuda_plugin.so")],
                    ),
                    PipPackage::newest(
                        "nvidia-cuda-nvcc==13.*",
                        &[
                            ("nvidia/cu13/bin/ptxas", "nvidia/cu13/bin/ptxas"),
                            ("nvidia/cu13/bin/nvlink", "nvidia/cu13/bin/nvlink"),
                        ],
                    ),
                    PipPackage::newest(
                        "nvidia-nvvm==13.*",
                        &[(
                            "nvidia/cu13/nvvm/libdevice/libdevice.10.bc",
                            "nvidia/cu13/nvvm/libdevice/libdevice.10.bc",
                        )],
                    ),
                ]
            },
        ),
        SetupPlatform::Xla => (AcceleratorPlatform::Xla, &[XLA_CPU]),
    }
}

impl RunCommand for SetupArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let (platform, packages) = packages(self.platform);
        let cache = plugin_cache().ok_or_else(|| {
            err!(Config, "there is no download folder")
                .hint_setting("name a download folder with SYSTOLE_CACHE")
        })?;
        screen.line(match platform {
            AcceleratorPlatform::Tpu => {
                "libtpu is Google's software; its use is subject to your agreement with Google (Google Cloud's terms)."
            }
            AcceleratorPlatform::Cuda => {
                "ptxas, nvlink and libdevice are NVIDIA's software; their use is subject to NVIDIA's CUDA terms."
            }
            AcceleratorPlatform::Xla => {
                "XLA's CPU client is built by the project lammps-jax, under the Apache License 2.0; the download is 63 MB."
            }
        });
        let mut fetched = Vec::new();
        for (i, package) in packages.iter().enumerate() {
            let wanted =
                package.wanted(self.version.as_deref().filter(|_| i == 0)).map_err(CommandError::usage)?;
            if package.is_there(&cache) {
                screen.detail(format!("{wanted} is already downloaded and has the expected hash"));
                fetched.push(wanted);
                continue;
            }
            screen.detail(format!("downloading {wanted} with pip"));
            let work = cache.join(format!("{}.part-{}", platform.name(), std::process::id()));
            fs::create_dir_all(&work).map_err(|e| {
                Error::io("cannot create", &work, e).hint_setting("name a writable folder with SYSTOLE_CACHE")
            })?;
            let placed = fetch(&wanted, &work).and_then(|()| {
                package.files.iter().try_for_each(|(from, to)| place(package, &work, from, &cache.join(to)))
            });
            let _ = fs::remove_dir_all(&work);
            placed?;
            fetched.push(wanted);
        }
        let path = cache.join(platform.name()).join(platform.file());
        let (major, minor) = Plugin::peek(&path)?.version();
        screen.line(format!("{} is ready: PJRT {major}.{minor}", path.display()));
        if screen.json {
            screen.object(
                &json!({"plugin": path, "packages": fetched, "pjrt_version": format!("{major}.{minor}")}),
            );
        }
        Ok(0)
    }
}

/// Downloads and unpacks a package's wheel without installing it.
fn fetch(wanted: &str, work: &Path) -> Result<()> {
    let wheels = work.join("wheels");
    let unpacked = work.join("unpacked");
    python(
        &[
            "-m",
            "pip",
            "download",
            "--disable-pip-version-check",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
        ],
        &[&wheels],
        &[wanted],
    )?;
    let entries = fs::read_dir(&wheels).map_err(|e| Error::io("cannot read", &wheels, e))?;
    let wheel = entries.flatten().map(|e| e.path()).find(|p| p.extension().is_some_and(|e| e == "whl"));
    let wheel = wheel.ok_or_else(|| err!(Io, "pip downloaded no wheel for {wanted}"))?;
    python(&["-m", "zipfile", "-e"], &[&wheel, &unpacked], &[])
}

fn python(first: &[&str], paths: &[&Path], last: &[&str]) -> Result<()> {
    let named = knobs::PYTHON.get();
    let program = if named.is_empty() { "python3" } else { &named };
    let out = Command::new(program).args(first).args(paths).args(last).output();
    let out = out.map_err(|e| {
        Error::io("cannot start", program, e)
            .hint_setting("install Python with pip, or name a Python interpreter with SYSTOLE_PYTHON")
    })?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let end: Vec<&str> = said.trim().lines().rev().take(4).collect();
    let why = match end.is_empty() {
        true => out.status.to_string(),
        false => end.into_iter().rev().collect::<Vec<_>>().join("\n"),
    };
    let e = err!(Io, "{program} {} failed", first[1]);
    Err(e.because(why).hint("check the network and the version number"))
}

/// Moves a file to its destination after checking its hash against the package's RECORD and the pinned hash.
fn place(package: &PipPackage, work: &Path, file: &str, to: &Path) -> Result<()> {
    let unpacked = work.join("unpacked");
    let from = unpacked.join(file);
    let bytes = fs::read(&from).map_err(|e| Error::io("the package does not contain", &from, e))?;
    let stated = stated_hash(&unpacked, file)?;
    let found = base64(&Sha256::digest(&bytes));
    if stated != found {
        let e = err!(Data, "{file} does not match its package's hash");
        return Err(e
            .because(format!("the file's SHA-256 is {found}, expected {stated}"))
            .hint("download it again"));
    }
    package.check(file, &bytes)?;
    make_executable(&from)?;
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(|e| Error::io("cannot create", folder, e))?;
    fs::rename(&from, to).map_err(|e| Error::io("cannot move a file to", to, e))
}

/// Sets the executable bit, which Python's zipfile drops.
fn make_executable(path: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(path, mode).map_err(|e| Error::io("cannot make executable", path, e))?;
    }
    Ok(())
}

/// Reads the hash from the package's RECORD: `libtpu/libtpu.so,sha256=…,574812664`.
fn stated_hash(unpacked: &Path, file: &str) -> Result<String> {
    let lacking = || err!(Data, "the package has no hash for {file}");
    let entries = fs::read_dir(unpacked).map_err(|e| Error::io("cannot read", unpacked, e))?;
    let record =
        entries.flatten().map(|e| e.path().join("RECORD")).find(|p| p.is_file()).ok_or_else(lacking)?;
    let text = fs::read_to_string(&record).map_err(|e| Error::io("cannot read", &record, e))?;
    let hash = text.lines().find_map(|l| l.strip_prefix(file)?.strip_prefix(",sha256=")?.split(',').next());
    hash.map(String::from).ok_or_else(lacking)
}

/// Base64 as in RECORD files: URL-safe alphabet, no padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let word = group.iter().enumerate().fold(0u32, |w, (i, b)| w | u32::from(*b) << (16 - 8 * i));
        let letters = (0..=group.len()).map(|i| LETTERS[(word >> (18 - 6 * i)) as usize & 63] as char);
        out.extend(letters);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;

    #[test]
    fn hashes_are_written_as_packages_write_them() {
        assert_eq!(base64(b"Man"), "TWFu");
        assert_eq!(base64(b"Ma"), "TWE");
        assert_eq!(base64(&[0xfb, 0xff]), "-_8");
        assert_eq!(base64(&Sha256::digest(b"")), "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU");
    }

    #[test]
    fn a_library_with_another_hash_is_refused() {
        let work = std::env::temp_dir().join(format!("systole-setup-{}", std::process::id()));
        let package = work.join("unpacked");
        fs::create_dir_all(package.join("libtpu")).unwrap();
        fs::create_dir_all(package.join("libtpu-1.dist-info")).unwrap();
        let record = package.join("libtpu-1.dist-info/RECORD");
        let good = base64(&Sha256::digest(b"library"));
        for (hash, fits) in [("AAAA", false), (good.as_str(), true)] {
            fs::write(package.join("libtpu/libtpu.so"), "library").unwrap();
            fs::write(&record, format!("libtpu/libtpu.so,sha256={hash},7\n")).unwrap();
            let libtpu = PipPackage::newest("libtpu", &[]);
            let placed = place(&libtpu, &work, "libtpu/libtpu.so", &work.join("cache/libtpu.so"));
            assert_eq!(placed.is_ok(), fits, "{placed:?}");
        }
        assert_eq!(fs::read(work.join("cache/libtpu.so")).unwrap(), b"library");
        fs::remove_dir_all(&work).unwrap();
    }

    /// The metadata of a package is not trusted if this program knows its hash.
    #[test]
    fn a_pinned_package_has_one_version_and_one_hash() {
        assert_eq!(XLA_CPU.wanted(None).unwrap(), "lammps-jax-pjrt-cpu==0.11.2");
        assert_eq!(XLA_CPU.wanted(Some("0.11.2")).unwrap(), "lammps-jax-pjrt-cpu==0.11.2");
        let e = XLA_CPU.wanted(Some("0.11.1")).unwrap_err();
        systole_testing::assert_error(&e, ErrorKind::Config, &["0.11.1", "--version", "0.11.2"]);
        let work = std::env::temp_dir().join(format!("systole-setup-xla-{}", std::process::id()));
        let (package, info) = (work.join("unpacked/lammps_jax_pjrt_cpu"), work.join("unpacked/info"));
        fs::create_dir_all(&package).unwrap();
        fs::create_dir_all(&info).unwrap();
        let (from, to) = XLA_CPU.files[0];
        fs::write(package.join("pjrt_c_api_cpu_plugin.so"), "library").unwrap();
        let stated = base64(&Sha256::digest(b"library"));
        fs::write(info.join("RECORD"), format!("{from},sha256={stated},7\n")).unwrap();
        let e = place(&XLA_CPU, &work, from, &work.join(to)).unwrap_err().to_string();
        assert!(e.contains("expected ad1309ac"), "{e}");
        assert!(!work.join(to).exists() && !XLA_CPU.is_there(&work));
        fs::remove_dir_all(&work).unwrap();
    }
}
