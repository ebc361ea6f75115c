"""A torch with nothing but torchrun, imported in no time: see tests/light.py."""

from .version import __version__
