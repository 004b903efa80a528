"""Finds the program `systole` that was installed with this module."""

import os
import sys
import sysconfig

NAME = "systole"


def program():
    """The path of the `systole` program that came with this module."""
    # The environment's folder of scripts; that of `pip install --user`; beside the modules of `pip install --target`.
    user = sysconfig.get_preferred_scheme("user")
    target = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin")
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", scheme=user), target, os.path.dirname(sys.executable)]
    for path in (os.path.join(folder, NAME) for folder in folders):
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"the program `{NAME}` is in none of {', '.join(folders)}: install the wheel again")
