"""Packs an archive for users: archive.py VERSION PROGRAM PLUGIN DIST [--most GLIBC] [--level 1…9]

DIST/systole-VERSION-TARGET.tar.gz and its checksum: the program and the plugin without symbols, licences, README, completions, pages for man,
an SBOM, and SHA256SUMS of all of it. With --most (such as 2.28) a newer glibc is an error. The same files give the same archive.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import subprocess
import tarfile
import tempfile

import crates
import glibc
import sbom

COMPLETIONS = {"bash": "systole.bash", "zsh": "_systole", "fish": "systole.fish", "powershell": "systole.ps1", "elvish": "systole.elv"}


def stripped(path, folder):
    """The bytes without symbols."""
    out = os.path.join(folder, "stripped")
    subprocess.run(["strip", "--strip-unneeded", "-o", out, path], check=True)
    return pathlib.Path(out).read_bytes()


def told(program, *words):
    return subprocess.run([program, *words], capture_output=True, check=True).stdout


def files(program, plugin, folder):
    """What the archive holds: name and bytes."""
    bytes_of_program = stripped(program, folder)
    yield "systole", bytes_of_program
    yield "libsystole_plugin.so", stripped(plugin, folder)
    for name in ("README.md", "LICENSE-MIT", "LICENSE-APACHE"):
        yield name, (crates.ROOT / name).read_bytes()
    for shell, name in COMPLETIONS.items():
        yield f"completions/{name}", told(program, "completions", shell)
    pages = pathlib.Path(folder, "man")
    told(program, "man", "--out", pages)
    for page in sorted(pages.rglob("*.1")):
        yield f"man/man1/{page.name}", page.read_bytes()
    found = crates.read()
    yield "LICENSES-OF-DEPENDENCIES.txt", crates.licences(found).encode()
    bom = sbom.made(found, bytes_of_program)
    sbom.check(bom)
    yield "systole.cdx.json", (json.dumps(bom, indent=2) + "\n").encode()


def packed(name, entries, level):
    """A .tar.gz without times and owners."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for path, data in entries:
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(data)
            entry.mode = 0o755 if path in ("systole", "libsystole_plugin.so") else 0o644
            out.addfile(entry, io.BytesIO(data))
    return gzip.compress(tar.getvalue(), level, mtime=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for word in ("version", "program", "plugin", "dist"):
        parser.add_argument(word)
    parser.add_argument("--most", metavar="GLIBC")
    parser.add_argument("--level", type=int, default=9)
    args = parser.parse_args()
    needed = glibc.newest([args.program, args.plugin], args.most)
    name = f"systole-{args.version}-{crates.TARGET}"
    with tempfile.TemporaryDirectory() as folder:
        entries = list(files(args.program, args.plugin, folder))
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in entries)
    archive = packed(name, [*entries, ("SHA256SUMS", sums.encode())], args.level)
    dist = pathlib.Path(args.dist)
    dist.mkdir(parents=True, exist_ok=True)
    path = dist / f"{name}.tar.gz"
    path.with_suffix(".part").write_bytes(archive)
    os.replace(path.with_suffix(".part"), path)
    (dist / f"{name}.tar.gz.sha256").write_text(f"{hashlib.sha256(archive).hexdigest()}  {path.name}\n")
    print(f"{path}: {len(entries) + 1} files, {len(archive):,} bytes, glibc {needed[0]}.{needed[1]}")


main()
