"""Two users who share a library: a bare repository, and a home for each of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from disttui.runner.library.store import Saved, save, text_in
from disttui.runner.library.syncing import Synced, sync
from disttui.runner.profile.library import Library, library_named
from tests.command import ran

PROFILE = """\
disttui: 1
description: two boxes   # under the desk
hosts:
  - node1        # the left one
  - {host: node2, gpus: [0, 1]}
job:
  script: train.py
  args: [--steps, "100"]   # enough
launch:
  restarts: 1
"""


def bare(folder: Path) -> Path:
    """A repository without files, as on a server."""
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", str(folder)], check=True)
    return folder


class User:
    """Somebody with a home of their own and the library `team`."""

    def __init__(self, name: str, folder: Path, remote: Path | str) -> None:
        self.name = name
        self.home = folder / name
        config = self.home / "config/disttui"
        config.mkdir(parents=True)
        (config / "config.yaml").write_text(f"libraries: [{{name: team, git: '{remote}'}}]\n")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "XDG_", "DISTTUI_"))}
        self.environ = {
            **kept,
            "HOME": str(self.home),
            "GIT_AUTHOR_NAME": name,
            "GIT_AUTHOR_EMAIL": f"{name}@example.org",
            **{f"XDG_{kind}_HOME": str(self.home / kind.lower()) for kind in ("CONFIG", "DATA", "CACHE", "STATE")},
        }

    @property
    def library(self) -> Library:
        return library_named("team", self.environ)

    def read(self, name: str) -> str | None:
        return text_in(self.library, f"{name}.yaml")

    def save(self, name: str, text: str | None, *, base: str | None = None) -> Saved:
        """Save what an editor has made of the text that is there, or of `base`."""
        return save(self.library, name, text, base if base is not None else self.read(name), self.environ)

    def edit(self, name: str, old: str, new: str) -> Saved:
        before = self.read(name)
        assert before is not None and old in before
        return self.save(name, before.replace(old, new))

    def sync(self) -> Synced:
        return sync(self.library, self.environ)

    def git(self, *words: str) -> str:
        identity = ["-c", f"user.name={self.name}", "-c", f"user.email={self.name}@example.org"]
        out = ran(["git", "-C", str(self.library.folder), *identity, *words], check=True)
        return out.stdout
