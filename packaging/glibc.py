"""The glibc and the libraries that programs need, by their ELF headers."""

import re
import subprocess
import sys

# manylinux allows these of what Rust links: https://peps.python.org/pep-0600/
ALLOWED = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
# No program of Rust asks for less.
LEAST = (2, 17)


def readelf(path, option):
    return subprocess.run(["readelf", option, "--wide", path], capture_output=True, text=True, check=True).stdout


def of(path):
    """The newest glibc version that a file requires."""
    versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", readelf(path, "--version-info"))
    return max(((int(a), int(b)) for a, b in versions), default=LEAST)


def libraries(path):
    """The shared libraries that a file requires."""
    return sorted(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(path, "--dynamic")))


def newest(paths, most=None):
    """The newest glibc that files require, at least 2.17. Ends the program for one newer than `most` (such as 2.28), or for a
    library that not every Linux has."""
    for path in paths:
        others = set(libraries(path)) - ALLOWED
        if others:
            sys.exit(f"error: {path} requires {', '.join(sorted(others))}, which wheels must not require")
    needed = max([LEAST, *map(of, paths)])
    if most and needed > tuple(map(int, most.split("."))):
        sys.exit(
            f"error: the binaries require glibc {needed[0]}.{needed[1]}, newer than {most}\n"
            f"  try: --glibc {needed[0]}.{needed[1]}, or --native-glibc, which state the newer version in the names of the packages"
        )
    return needed
