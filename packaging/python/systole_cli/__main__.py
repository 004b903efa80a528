"""Runs the program with the arguments of `python -m systole_cli`."""

import os
import sys

from ._program import program

if __name__ == "__main__":
    path = program()
    os.execv(path, [path, *sys.argv[1:]])
