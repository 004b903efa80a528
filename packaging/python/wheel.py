"""Packs a wheel by the standard library alone: wheel.py VERSION PROGRAM PLUGIN DIST [MOST_GLIBC]

The tag says the newest glibc that the two binaries ask for; with MOST_GLIBC (such as 2.28) a newer one is an error.
"""

import base64
import hashlib
import os
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import glibc

NAME = "systole_jax"
METADATA = """Metadata-Version: 2.1
Name: systole-jax
Version: {version}
Summary: Systole's CPU engine for JAX, as a PJRT plugin, and the systole program
License: MIT OR Apache-2.0
Requires-Python: >=3.10
Requires-Dist: numpy
Requires-Dist: ml_dtypes
Description-Content-Type: text/markdown

{readme}"""


def files(version, program, plugin):
    """What the wheel holds: name, bytes, and whether it can be executed."""
    for package in (NAME, "jax_plugins/systole"):
        for file in sorted(os.listdir(os.path.join(HERE, package))):
            if file.endswith(".py"):
                with open(os.path.join(HERE, package, file), "rb") as f:
                    yield f"{package}/{file}", f.read(), False
    with open(plugin, "rb") as f:
        yield "jax_plugins/systole/libsystole_plugin.so", f.read(), True
    with open(program, "rb") as f:
        yield f"{NAME}-{version}.data/scripts/systole", f.read(), True


def about(version, tag):
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    info = f"{NAME}-{version}.dist-info"
    yield f"{info}/METADATA", METADATA.format(version=version, readme=readme).encode(), False
    wheel = f"Wheel-Version: 1.0\nGenerator: systole\nRoot-Is-Purelib: false\nTag: {tag}\n"
    yield f"{info}/WHEEL", wheel.encode(), False
    yield f"{info}/entry_points.txt", b"[jax_plugins]\nsystole = jax_plugins.systole\n", False


def main():
    version, program, plugin, dist = sys.argv[1:5]
    needed = glibc.newest([program, plugin], *sys.argv[5:])
    tag = f"py3-none-manylinux_{needed[0]}_{needed[1]}_x86_64"
    path = os.path.join(dist, f"{NAME}-{version}-{tag}.whl")
    os.makedirs(dist, exist_ok=True)
    record = []
    with zipfile.ZipFile(path + ".part", "w", zipfile.ZIP_DEFLATED) as out:

        def put(name, data, executable):
            # The same files give the same wheel: no time of day in it.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            out.writestr(entry, data)

        for name, data, executable in [*files(version, program, plugin), *about(version, tag)]:
            put(name, data, executable)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        own = f"{NAME}-{version}.dist-info/RECORD"
        put(own, "\n".join([*record, f"{own},,", ""]).encode(), False)
    os.replace(path + ".part", path)
    print(path)


main()
