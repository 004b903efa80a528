"""The glibc that programs and libraries ask for, by the versions of their symbols."""

import re
import subprocess
import sys


def of(path):
    """The newest that one asks for."""
    told = subprocess.run(["readelf", "--version-info", "--wide", path], capture_output=True, text=True, check=True)
    versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", told.stdout)
    return max(((int(a), int(b)) for a, b in versions), default=(2, 17))


def newest(paths, most=None):
    """The newest that they ask for; one that is newer than `most` (such as 2.28) ends the program."""
    needed = max(map(of, paths))
    if most and needed > tuple(map(int, most.split("."))):
        sys.exit(
            f"error: the binaries ask for glibc {needed[0]}.{needed[1]}, more than {most}\n"
            "  try: `pip install cargo-zigbuild ziglang`, with its folder on the PATH, links against an older one"
        )
    return needed
