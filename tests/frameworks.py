"""Where other people's frameworks are installed for the tests: accelerate, transformers, lightning, deepspeed."""

from __future__ import annotations

import sys
from pathlib import Path

PYTHON = Path(sys.prefix) / "frameworks" / "bin" / "python"
"""Its environment sees torch, and what is installed beside it, in the tests' own."""
