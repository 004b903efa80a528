"""Builds the program and the plugin against an old glibc, with cargo-zigbuild from a virtual environment of its own."""

import os
import pathlib
import subprocess
import sys
import venv

import crates
import glibc

ROOT = crates.ROOT


def target_folder():
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target")


def linker():
    """The folder with cargo-zigbuild and zig, which pip installs at the first time."""
    folder = target_folder() / "packaging-venv"
    programs = folder / "bin"
    requirements = ROOT / "packaging/requirements.txt"
    installed = folder / "installed.txt"
    if not installed.is_file() or installed.read_text() != requirements.read_text():
        print(f"installing cargo-zigbuild and ziglang into {folder}", file=sys.stderr)
        install = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
        try:
            venv.create(folder, with_pip=True)
            subprocess.run(install, check=True, stdout=sys.stderr)
        except (OSError, subprocess.CalledProcessError) as e:
            sys.exit(
                f"error: cannot install cargo-zigbuild and ziglang: {e}\n"
                "  where: packaging/requirements.txt\n"
                "  try: connect to a Python package index, or pass --native-glibc for packages that need this machine's glibc"
            )
        installed.write_text(requirements.read_text())
    return programs


def flags():
    """Compiler flags without the folders of this machine, so that they are in no message of the program."""
    cargo = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    folders = [(ROOT, "/systole"), (cargo / "registry/src", "/registry"), (sysroot, "/rust")]
    own = [f"--remap-path-prefix={folder}={name}" for folder, name in folders]
    return " ".join([os.environ.get("RUSTFLAGS", ""), *own]).strip()


def build(profile, oldest):
    """Paths of the program and the plugin. `oldest`: the glibc that they may need, or None for this machine's."""
    packages = [word for name in crates.PROGRAMS for word in ("-p", name)]
    environment = dict(os.environ)
    if oldest is None:
        command = ["cargo", "build", "--profile", profile]
        folder = target_folder()
    else:
        command = ["cargo-zigbuild", "zigbuild", "--profile", profile, "--target", f"{crates.TARGET}.{oldest}"]
        environment["PATH"] = f"{linker()}{os.pathsep}{environment.get('PATH', '')}"
        environment["RUSTFLAGS"] = flags()
        folder = target_folder() / crates.TARGET
    done = subprocess.run([*command, "--locked", *packages], cwd=ROOT, env=environment, stdout=sys.stderr)
    if done.returncode != 0:
        sys.exit(f"error: `{' '.join(command)}` failed with code {done.returncode}")
    folder /= {"dev": "debug"}.get(profile, profile)
    built = folder / crates.NAMES["program"], folder / "libsystole_plugin.so"
    glibc.newest(built, oldest)
    return built
