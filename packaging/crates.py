"""Names of what is published, and the crates that it is linked from, by cargo's metadata and lock file, without the network."""

import json
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = "x86_64-unknown-linux-gnu"
NAMES = tomllib.loads((ROOT / "packaging/names.toml").read_text(encoding="utf-8"))
# What is delivered.
PROGRAMS = (NAMES["crates"]["program"], NAMES["crates"]["plugin"])
TEXTS = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")


class Crate:
    """A crate: what it is called, its licence and texts, and what it is linked with."""

    def __init__(self, package, checksum):
        self.id, self.name, self.version = package["id"], package["name"], package["version"]
        self.is_ours = package["source"] is None
        # An old form of the same.
        self.licence = (package["license"] or "").replace("/", " OR ")
        self.about, self.authors, self.repository = package["description"], package["authors"], package["repository"]
        self.folder = pathlib.Path(package["manifest_path"]).parent
        self.is_macro = any("proc-macro" in target["kind"] for target in package["targets"])
        self.checksum = checksum
        self.needs = []
        self.is_linked = False

    def texts(self):
        """Names and texts of the files that it comes with."""
        paths = sorted(path for path in self.folder.iterdir() if path.is_file() and path.name.upper().startswith(TEXTS))
        return [(path.name, path.read_text(encoding="utf-8", errors="replace")) for path in paths]


def read():
    """All crates that the programs need, ours first: those that are linked, and those that only build them."""
    command = ["cargo", "metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", TARGET]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"error: `{' '.join(command)}` failed with code {done.returncode}")
    told = json.loads(done.stdout)
    with open(ROOT / "Cargo.lock", "rb") as lock:
        sums = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(lock)["package"]}
    packages = {p["id"]: Crate(p, sums.get((p["name"], p["version"]))) for p in told["packages"]}
    for node in told["resolve"]["nodes"]:
        kinds = [(packages[dep["pkg"]], {kind["kind"] for kind in dep["dep_kinds"]}) for dep in node["deps"]]
        # What tests need is no part of what is delivered.
        packages[node["id"]].needs = [(crate, None in kind) for crate, kind in kinds if kind != {"dev"}]
    found = {}
    todo = [(crate, True) for crate in packages.values() if crate.is_ours and crate.name in PROGRAMS]
    while todo:
        crate, is_linked = todo.pop()
        is_linked = is_linked and not crate.is_macro
        if crate.id in found and (crate.is_linked or not is_linked):
            continue
        crate.is_linked |= is_linked
        found[crate.id] = crate
        todo += [(needed, is_linked and is_normal) for needed, is_normal in crate.needs]
    return sorted(found.values(), key=lambda c: (not c.is_ours, c.name, c.version))


def licences(crates):
    """The licence texts of those that are linked, each text once, with the crates that it is of."""
    others = [crate for crate in crates if crate.is_linked and not crate.is_ours]
    by_text = {}
    for crate in others:
        texts = crate.texts()
        assert texts, f"{crate.name} {crate.version} ({crate.licence}) comes without the text of its licence"
        for name, text in texts:
            by_text.setdefault(text.strip().replace("\r\n", "\n"), []).append(f"{crate.name} {crate.version} ({name})")
    table = [f"{crate.name} {crate.version}: {crate.licence}" for crate in others]
    parts = ["\n".join(names) + "\n\n" + text for text, names in by_text.items()]
    line = "\n\n" + "=" * 100 + "\n\n"
    return "Systole is linked with these crates, under these licences:\n\n" + "\n".join(table) + line + line.join(parts) + "\n"
