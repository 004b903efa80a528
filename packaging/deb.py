"""The Debian package: an ar archive of two tar files, without tools of Debian."""

import gzip
import hashlib
import lzma

import archive
import crates

CONTROL = """Package: {name}
Version: {version}
Architecture: amd64
Maintainer: Systole contributors
Installed-Size: {kibibytes}
Depends: {depends}
Section: science
Priority: optional
Homepage: {homepage}
Description: deep learning with Keras's names, in one program
 Trains with Keras's layers, losses and optimizers, without Python; evaluates,
 quantizes and exports models, and plans runs on TPUs and GPUs.
"""


def folders(paths):
    """All folders of the paths, as Debian's tools write them."""
    found = {"./"}
    for path in paths:
        words = path.split("/")[:-1]
        found |= {"/".join(words[: k + 1]) + "/" for k in range(len(words))}
    return [(folder, b"", 0o755) for folder in sorted(found)]


def content(parts):
    """Path, bytes and mode of each installed file."""
    name = crates.NAMES["debian"]
    share, doc = "./usr/share", f"./usr/share/doc/{name}"
    places = {
        "bash": f"{share}/bash-completion/completions/systole",
        "zsh": f"{share}/zsh/vendor-completions/_systole",
        "fish": f"{share}/fish/vendor_completions.d/systole.fish",
    }
    packed = lambda data: gzip.compress(data, 9, mtime=0)
    texts = dict(parts.texts)
    rights = b"MIT or Apache-2.0, at your option.\n\n" + texts["LICENSE-MIT"] + b"\n\n" + texts["LICENSE-APACHE"]
    yield "./usr/bin/systole", parts.program, 0o755
    for shell, path in places.items():
        yield path, parts.completions[shell][1], 0o644
    for page, data in parts.pages:
        yield f"{share}/man/man1/{page}.gz", packed(data), 0o644
    yield f"{doc}/copyright", rights, 0o644
    yield f"{doc}/LICENSES-OF-DEPENDENCIES.txt.gz", packed(texts["LICENSES-OF-DEPENDENCIES.txt"]), 0o644
    yield f"{doc}/changelog.gz", packed(parts.changes), 0o644


def depends(parts):
    needed = [f"libc6 (>= {parts.glibc[0]}.{parts.glibc[1]})"]
    return ", ".join(needed + ["libgcc-s1"] * ("libgcc_s.so.1" in parts.libraries))


def member(name, data):
    """A file of an ar archive, at an even offset."""
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{0o100644:<8o}{len(data):<10}`\n"
    return head.encode() + data + b"\n" * (len(data) % 2)


def pack(parts, level):
    """Name and bytes."""
    files = sorted(content(parts))
    size = sum(-(-len(data) // 1024) for _, data, _ in files)
    control = CONTROL.format(
        name=crates.NAMES["debian"],
        version=parts.version,
        kibibytes=size,
        depends=depends(parts),
        homepage=parts.homepage,
    )
    sums = "".join(f"{hashlib.md5(data).hexdigest()}  {path[2:]}\n" for path, data, _ in files)
    tables = [("./", b"", 0o755), ("./control", control.encode(), 0o644), ("./md5sums", sums.encode(), 0o644)]
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", lzma.compress(archive.tar(tables, "root"), preset=level)),
        ("data.tar.xz", lzma.compress(archive.tar([*folders([path for path, _, _ in files]), *files], "root"), preset=level)),
    ]
    data = b"!<arch>\n" + b"".join(member(name, data) for name, data in members)
    return f"{crates.NAMES['debian']}_{parts.version}_amd64.deb", data
