"""The two wheels, packed by the standard library alone: the program, and the plugin for JAX with the program."""

import base64
import hashlib
import io
import zipfile

import crates

SOURCES = crates.ROOT / "packaging/python"
# pip checks a file's tag before it unpacks it, so that a wheel never needs a newer glibc than its name says.
TAG = "py3-none-manylinux_{}_{}_x86_64"
METADATA = """Metadata-Version: 2.4
Name: {distribution}
Version: {version}
Summary: {summary}
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: LICENSE-APACHE
License-File: LICENSES-OF-DEPENDENCIES.txt
Project-URL: Homepage, {homepage}
Requires-Python: >={python}
{requires}Description-Content-Type: text/markdown

{readme}"""
WHEELS = {
    "program": {"python": "3.11", "requires": [], "packages": ["{module}"], "entry_points": ""},
    "jax": {
        "python": "3.10",
        "requires": ["numpy", "ml_dtypes"],
        "packages": ["{module}", "jax_plugins/systole"],
        "entry_points": "[jax_plugins]\nsystole = jax_plugins.systole\n",
    },
}


def modules(kind, module):
    """Name and bytes of the Python files."""
    for package in (package.format(module=module) for package in WHEELS[kind]["packages"]):
        for path in sorted((SOURCES / package).glob("*.py")):
            yield f"{package}/{path.name}", path.read_bytes()
    # Both find their program by the same rules.
    yield f"{module}/_program.py", (SOURCES / "find_program.py").read_bytes()


def content(kind, names, parts, tag):
    """Name, bytes and whether it can be executed."""
    about, module = WHEELS[kind], names["module"]
    info = f"{module}-{parts.version}.dist-info"
    for name, data in modules(kind, module):
        yield name, data, False
    if kind == "jax":
        yield "jax_plugins/systole/libsystole_plugin.so", parts.plugin, True
    yield f"{module}-{parts.version}.data/scripts/{crates.NAMES['program']}", parts.program, True
    readme = (SOURCES / module / "README.md").read_text(encoding="utf-8")
    metadata = METADATA.format(
        distribution=names["distribution"],
        version=parts.version,
        summary=readme.splitlines()[2],
        homepage=parts.homepage,
        python=about["python"],
        requires="".join(f"Requires-Dist: {name}\n" for name in about["requires"]),
        readme=readme,
    )
    yield f"{info}/METADATA", metadata.encode(), False
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: systole\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False
    if about["entry_points"]:
        yield f"{info}/entry_points.txt", about["entry_points"].encode(), False
    for name, data in parts.texts:
        if name.startswith("LICENSE"):
            yield f"{info}/licenses/{name}", data, False


def pack(kind, parts, level):
    """Name and bytes."""
    names = crates.NAMES["wheels"][kind]
    tag = TAG.format(*parts.glibc)
    record, own = [], f"{names['module']}-{parts.version}.dist-info/RECORD"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:

        def put(name, data, executable):
            # The same files give the same wheel: no time of day in it.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            file.writestr(entry, data, zipfile.ZIP_DEFLATED, level)

        for name, data, executable in content(kind, names, parts, tag):
            put(name, data, executable)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        put(own, "\n".join([*record, f"{own},,", ""]).encode(), False)
    return f"{names['module']}-{parts.version}-{tag}.whl", out.getvalue()
