"""The program `systole`, as a wheel installs it: `systole …`, or `python -m systole_cli …`."""

import importlib.metadata

from ._program import program

__all__ = ["__version__", "program"]
__version__ = importlib.metadata.version(__name__)
