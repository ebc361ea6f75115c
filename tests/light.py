"""A Python whose torch is nothing but a torchrun of a hundred lines: for tests of all that is around a training.

Importing torch takes 2 s of CPU time on every host of every run, even where ranks do without it.
"""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path

PACKAGES = Path(__file__).with_name("data") / "light"


def light_python(folder: Path) -> str:
    """Make an environment with that torch in a folder, if it is not there yet; returns its interpreter."""
    if (folder / "bin" / "python").exists():
        return str(folder / "bin" / "python")
    venv.create(folder, symlinks=True, with_pip=False)
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    Path(site, "light.pth").write_text(f"{PACKAGES}\n")
    return str(folder / "bin" / "python")
