"""The `disttui` command: parse, call, print. Every import that costs time is made where it is needed."""

from runner.cli.main import main

__all__ = ["main"]
