"""The .tar.gz for users: the program, the plugin for JAX, licenses, README, completions, man pages and an SBOM."""

import gzip
import hashlib
import io
import tarfile

import crates


def tar(entries, owner=""):
    """Bytes of a tar file without times and users, of (name, bytes, mode); a name that ends with / is a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for name, data, mode in entries:
            entry = tarfile.TarInfo(name.rstrip("/"))
            entry.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            entry.size, entry.mode, entry.uname, entry.gname = len(data), mode, owner, owner
            file.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def pack(parts, level):
    """Name and bytes."""
    name = f"{crates.NAMES['program']}-{parts.version}-{crates.TARGET}"
    files = [
        ("systole", parts.program, 0o755),
        ("libsystole_plugin.so", parts.plugin, 0o755),
        *((path, data, 0o644) for path, data in parts.texts),
        *((f"completions/{path}", data, 0o644) for path, data in parts.completions.values()),
        *((f"man/man1/{path}", data, 0o644) for path, data in parts.pages),
        ("systole.cdx.json", parts.sbom, 0o644),
    ]
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data, _ in files)
    files.append(("SHA256SUMS", sums.encode(), 0o644))
    data = tar([(f"{name}/{path}", data, mode) for path, data, mode in files])
    return f"{name}.tar.gz", gzip.compress(data, level, mtime=0)
