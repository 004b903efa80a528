//! Tests of `packaging/release`: everything that is published, packed from the program that cargo has built for the tests.
//! Nothing is built in release here.

use crate::program::Folder;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub fn succeed(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (said, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}:\n{said}\n{wrong}");
    said.into_owned()
}

/// The plugin's library beside the test programs.
fn plugin() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let found = exe.ancestors().skip(1).take(2).map(|d| d.join("libsystole_plugin.so")).find(|p| p.is_file());
    found.expect("`cargo test --workspace` builds the plugin's library")
}

/// `packaging/release` of a checkout, with a program and the plugin; the glibc is this machine's.
fn release(root: &Path, program: &Path, out: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(root.join("packaging/release")).args(["--native-glibc", "--level=1", "--out"]).arg(out);
    command.arg("--binary").arg(program).arg("--plugin").arg(plugin());
    command
}

/// The folder with all packages, packed once.
fn packages() -> &'static Path {
    static PACKAGES: OnceLock<PathBuf> = OnceLock::new();
    PACKAGES.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
        let _ = std::fs::remove_dir_all(&out);
        succeed(&mut release(Path::new(ROOT), Path::new(env!("CARGO_BIN_EXE_systole")), &out));
        out
    })
}

/// The package whose name starts and ends so.
pub fn package(start: &str, end: &str) -> PathBuf {
    let files = std::fs::read_dir(packages()).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(start) && name.ends_with(end)
    };
    files.into_iter().find(is_it).unwrap_or_else(|| panic!("no {start}…{end}"))
}

fn names() -> toml::Table {
    std::fs::read_to_string(Path::new(ROOT).join("packaging/names.toml")).unwrap().parse().unwrap()
}

#[test]
fn names_are_those_of_the_manifests_and_folders() {
    let names = names();
    for (key, manifest) in [
        ("library", "Cargo.toml"),
        ("program", "crates/cli/Cargo.toml"),
        ("plugin", "crates/plugin/Cargo.toml"),
    ] {
        let manifest: toml::Table =
            std::fs::read_to_string(Path::new(ROOT).join(manifest)).unwrap().parse().unwrap();
        assert_eq!(manifest["package"]["name"], names["crates"][key]);
    }
    for wheel in ["program", "jax"] {
        let (distribution, module) =
            (&names["wheels"][wheel]["distribution"], &names["wheels"][wheel]["module"]);
        let (distribution, module) = (distribution.as_str().unwrap(), module.as_str().unwrap());
        assert_eq!(distribution.replace('-', "_"), module);
        assert_ne!(module, "systole", "another project has this name");
        assert!(Path::new(ROOT).join("packaging/python").join(module).join("__init__.py").is_file());
        let wheel = package(module, ".whl");
        let name = wheel.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with(&format!("{module}-{VERSION}-py3-none-manylinux_2_")), "{name}");
        assert!(name.ends_with("_x86_64.whl"), "{name}");
    }
}

#[test]
fn the_manifest_states_the_rust_version_and_what_docs_rs_shows() {
    let read = |file: &str| std::fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let rust = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    let pages = ["docs/guide/tour.md", "docs/zh/getting-started.md", "packaging/Dockerfile"];
    for page in ["README.md", "README.zh-CN.md"].into_iter().chain(pages) {
        let text = read(page);
        assert!(text.contains(&format!("Rust {rust}")) || text.contains(&format!("rust:{rust}")), "{page}");
    }
    let listed = manifest["package"]["metadata"]["docs"]["rs"]["features"].as_array().unwrap();
    let mut listed: Vec<&str> = listed.iter().map(|name| name.as_str().unwrap()).collect();
    let mut features: Vec<&String> = manifest["features"].as_table().unwrap().keys().collect();
    // Needs a C compiler, and adds nothing to the documentation.
    features.retain(|name| !["parquet-zstd", "default"].contains(&name.as_str()));
    listed.sort_unstable();
    features.sort_unstable();
    assert_eq!(listed, features);
}

#[test]
fn an_archive_has_what_a_user_needs() {
    let f = Folder::new("archive");
    succeed(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(packages()));
    succeed(Command::new("tar").arg("xzf").arg(package("systole-", ".tar.gz")).current_dir(&f.0));
    let place = f.path(&format!("systole-{VERSION}-x86_64-unknown-linux-gnu"));
    let read =
        |file: &str| std::fs::read_to_string(place.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    succeed(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&place));
    let version = succeed(Command::new(place.join("systole")).env_clear().arg("-V"));
    assert_eq!(version, format!("systole {VERSION}\n"));
    assert!(place.join("libsystole_plugin.so").is_file());
    for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        assert_eq!(read(file), std::fs::read_to_string(Path::new(ROOT).join(file)).unwrap());
    }
    succeed(Command::new("bash").arg("-n").arg(place.join("completions/systole.bash")));
    assert!(read("completions/_systole").starts_with("#compdef systole"));
    assert!(read("man/man1/systole-train.1").contains(".TH systole-train 1"));
    assert_eq!(read("systole.cdx.json"), std::fs::read_to_string(package("systole-", ".cdx.json")).unwrap());
    let changes = std::fs::read_to_string(package("systole-", "-changes.md")).unwrap();
    assert!(changes.starts_with("## [") && changes.matches("\n## ").count() == 0, "{changes}");
    contents_are_listed(
        &read("systole.cdx.json"),
        &read("LICENSES-OF-DEPENDENCIES.txt"),
        &read("SHA256SUMS"),
    );
}

/// The SBOM has the crates of cargo's metadata and no test's, with a license text for each that is linked.
fn contents_are_listed(bom: &str, texts: &str, sums: &str) {
    let bom: serde_json::Value = serde_json::from_str(bom).unwrap();
    let components = bom["components"].as_array().unwrap();
    let of = |c: &serde_json::Value, key: &str| c[key].as_str().unwrap_or_default().to_string();
    let names: Vec<String> = components.iter().map(|c| of(c, "name")).collect();
    assert!(["systole-plugin", "clap", "rustix"].iter().all(|name| names.iter().any(|n| n == name)));
    assert!(!names.iter().any(|n| n == "safetensors"), "a crate that only tests need");
    let mut linked = 0;
    for c in components.iter().filter(|c| of(c, "scope") == "required" && c["hashes"].is_array()) {
        let line = format!("{} {}", of(c, "name"), of(c, "version"));
        assert!(texts.contains(&format!("\n{line}: ")) && texts.contains(&format!("\n{line} (")), "{line}");
        linked += 1;
    }
    assert!(linked > 50, "{linked}");
    let sum = format!("{}  systole\n", of(&bom["metadata"]["component"]["hashes"][0], "content"));
    assert!(sums.starts_with(&sum));
}

#[test]
fn a_debian_package_installs_program_manual_and_completions() {
    let f = Folder::new("deb");
    let deb = package("systole_", "_amd64.deb");
    // The format by hand, for machines without Debian's tools: three members of an ar archive.
    succeed(Command::new("ar").arg("x").arg(&deb).current_dir(&f.0));
    assert_eq!(std::fs::read_to_string(f.path("debian-binary")).unwrap(), "2.0\n");
    for member in ["control", "data"] {
        std::fs::create_dir(f.path(member)).unwrap();
        let archive = format!("{member}.tar.xz");
        succeed(Command::new("tar").args(["xJf", &archive, "-C", member]).current_dir(&f.0));
    }
    let control = std::fs::read_to_string(f.path("control/control")).unwrap();
    for line in
        ["Package: systole", &format!("Version: {VERSION}"), "Architecture: amd64", "Depends: libc6 (>= 2."]
    {
        assert!(control.contains(line), "{line}: {control}");
    }
    succeed(
        Command::new("md5sum")
            .args(["--check", "--strict", "../control/md5sums"])
            .current_dir(f.path("data")),
    );
    let version = succeed(Command::new(f.path("data/usr/bin/systole")).env_clear().arg("-V"));
    assert_eq!(version, format!("systole {VERSION}\n"));
    for file in
        ["bash-completion/completions/systole", "man/man1/systole-train.1.gz", "doc/systole/copyright"]
    {
        assert!(f.path("data/usr/share").join(file).is_file(), "{file}");
    }
    if Command::new("dpkg-deb").arg("--version").output().is_ok() {
        assert_eq!(succeed(Command::new("dpkg-deb").arg("-f").arg(&deb).arg("Package")), "systole\n");
    }
}

/// Pythons of this machine from 3.11 on, one of each minor version: those in PATH, and those installed side by side.
fn pythons() -> BTreeMap<u32, PathBuf> {
    let ask = |python: &Path| {
        let facts = "import sys; print(*sys.version_info[:2], sys.base_prefix)";
        let out = Command::new(python)
            .args(["-I", "-c", facts])
            .output()
            .ok()
            .filter(|out| out.status.success())?;
        let text = String::from_utf8(out.stdout).ok()?;
        let [major, minor, prefix] = text.trim().splitn(3, ' ').collect::<Vec<_>>()[..] else { return None };
        (major == "3").then(|| Some((minor.parse::<u32>().ok()?, PathBuf::from(prefix))))?
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("python3"));
    let mut todo: Vec<PathBuf> =
        std::env::var_os("SYSTOLE_PYTHON").map(PathBuf::from).into_iter().chain(in_path).collect();
    let (mut found, mut parents) = (BTreeMap::new(), Vec::new());
    while let Some(python) = todo.pop().filter(|_| found.len() < 16) {
        let Some((minor, prefix)) = Some(&python).filter(|p| p.is_file()).and_then(|p| ask(p)) else {
            continue;
        };
        if let Some(parent) = prefix
            .parent()
            .filter(|parent| parent.parent().is_some() && !parents.contains(&parent.to_path_buf()))
        {
            parents.push(parent.to_path_buf());
            let beside = std::fs::read_dir(parent).into_iter().flatten().flatten();
            todo.extend(beside.map(|entry| entry.path().join("bin/python3")));
        }
        if minor >= 11 {
            found.entry(minor).or_insert(python);
        }
    }
    found
}

#[test]
fn the_program_installs_from_its_wheel_in_each_python() {
    let f = Folder::new("wheel-program");
    let pythons = pythons();
    assert!(!pythons.is_empty(), "packaging needs a Python of 3.11 or newer");
    let wheel = package("systole_cli-", ".whl");
    let pip_of = std::env::var_os("SYSTOLE_PYTHON").unwrap_or_else(|| "python3".into());
    for (minor, python) in &pythons {
        let venv = f.path(&format!("venv{minor}"));
        succeed(Command::new(python).args(["-m", "venv", "--without-pip"]).arg(&venv));
        let own = venv.join("bin/python");
        let pip = |words: &[&str]| {
            let mut command = Command::new(&pip_of);
            command.args(["-m", "pip", "--disable-pip-version-check", "--python"]).arg(&own).args(words);
            command
        };
        succeed(pip(&["install", "--quiet", "--no-index"]).arg(&wheel));
        let program = venv.join("bin/systole");
        let version = succeed(Command::new(&program).env_clear().arg("--version"));
        assert!(version.starts_with(&format!("systole {VERSION} (")), "{version}");
        let by_module = Command::new(&own).args(["-m", "systole_cli", "--version"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&by_module.stdout), version);
        // An exit code passes through.
        let wrong = Command::new(&own).args(["-m", "systole_cli", "trian"]).output().unwrap();
        assert_eq!(wrong.status.code(), Some(2));
        let facts = "import importlib.util, systole_cli as s; print(s.__version__, s.program(), s.__all__); assert not importlib.util.find_spec('systole')";
        let told = succeed(Command::new(&own).args(["-c", facts]));
        assert_eq!(
            told,
            format!("{VERSION} {} ['__version__', 'program']\n", program.display()),
            "3.{minor}"
        );
        succeed(&mut pip(&["uninstall", "--quiet", "--yes", "systole-cli"]));
        let left = succeed(Command::new("find").arg(&venv).args(["-name", "*systole*"]));
        assert_eq!(left, "", "3.{minor}");
    }
}

/// Copies what is packed, without what is only tested.
fn copy_checkout(to: &Path) {
    for name in ["Cargo.toml", "Cargo.lock", "README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        std::fs::copy(Path::new(ROOT).join(name), to.join(name)).unwrap();
    }
    succeed(Command::new("cp").args(["-r", "packaging", "src"]).arg(to).current_dir(ROOT));
    for entry in std::fs::read_dir(Path::new(ROOT).join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let copy = to.join("crates").join(folder.file_name().unwrap());
        std::fs::create_dir_all(&copy).unwrap();
        std::fs::copy(folder.join("Cargo.toml"), copy.join("Cargo.toml")).unwrap();
        succeed(Command::new("cp").arg("-r").arg(folder.join("src")).arg(&copy));
    }
}

/// The same program, packed from another folder, in another one, by another path and with another umask.
#[test]
fn packages_do_not_depend_on_folders() {
    let f = Folder::new("packed again");
    copy_checkout(&f.0);
    let program = f.path("another-name");
    std::fs::hard_link(env!("CARGO_BIN_EXE_systole"), &program).unwrap();
    let command = release(&f.0, &program, &f.path("out"));
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let mut again = Command::new("sh");
    again.args(["-c", "umask 077 && exec \"$@\"", "sh"]).args(words).current_dir("/");
    succeed(&mut again);
    let read = |folder: &Path| std::fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    let (here, there) = (read(packages()), read(&f.path("out")));
    assert_eq!(here, there);
    assert_eq!(here.lines().count(), 6, "{here}");
}

#[test]
fn wrong_usage_and_an_old_glibc_are_reported_before_anything_is_packed() {
    let f = Folder::new("release-usage");
    let run = |words: &[&str]| -> Output {
        let mut command = Command::new(Path::new(ROOT).join("packaging/release"));
        command.args(words).arg("--out").arg(f.path("out")).env("CARGO_TARGET_DIR", f.path("target"));
        command.env("PIP_NO_INDEX", "1").output().unwrap()
    };
    let help = run(&["--help"]);
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(
        help.status.success() && ["--native-glibc", "--only", "deb"].iter().all(|w| text.contains(w)),
        "{text}"
    );
    let (program, plugin) = (env!("CARGO_BIN_EXE_systole"), plugin());
    let files = ["--binary", program, "--plugin", plugin.to_str().unwrap()];
    for (words, code, parts) in [
        (&["--binary", program][..], 2, &["go together"][..]),
        (&["--binary", "no-file", "--plugin", "no-file"], 2, &["no-file is no file"]),
        (&["--only=rpm"], 2, &["invalid choice: 'rpm'"]),
        // What is asked for is never silently newer.
        (&[&files[..], &["--glibc=2.3"]].concat(), 1, &["newer than 2.3", "--native-glibc"]),
        // Without the tools that link against an old one.
        (&[], 1, &["cannot install cargo-zigbuild and ziglang", "--native-glibc"]),
    ] {
        let out = run(words);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(code), "{words:?}: {said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{words:?}: {said}");
    }
    assert!(f.files("out").is_empty());
}
