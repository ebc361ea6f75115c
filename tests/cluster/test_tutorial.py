"""The commands of the tutorial, as they are printed there, on the hosts that it names."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.typed import COMMAND, User, wait_gone

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_every_command_of_the_tutorial_does_what_it_says(user: Callable[..., User]) -> None:
    me = user(2)
    config = me.cluster.ssh_config
    config.write_text(re.sub(r"\bnode(?=[12]\b)", "box", config.read_text()))
    for host in me.cluster.hosts:
        (host.home / ".venv").symlink_to(ROOT / ".venv")
    folder = me.home / "project"
    shutil.copytree(ROOT / "examples" / "ddp", folder)
    (profile,) = (block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "name: mine" in block)
    (folder / "mine.yaml").write_text(profile)
    newest: dict[str, str] = {}
    done = []
    for line in re.findall(r"^ {4}(disttui .*)$", PAGE, re.MULTILINE):
        words = shlex.split(line, comments=True)
        if words[1] == "top":
            continue  # a screen
        words = [re.sub(r"\b(train|mine)-[0-9a-f]{4}\b", lambda found: newest[found[1]], word) for word in words]
        said = subprocess.run(
            [COMMAND, "--ssh-config", str(config), *words[1:]], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, cwd=folder, env=me.environment(COLUMNS="200"), timeout=300, check=False,
        )  # fmt: skip
        done.append(f"{line}\n{said.stdout}{said.stderr}")
        assert said.returncode == int("--steps 20" in line), f"exit code {said.returncode}\n{done[-1]}"
        found = re.findall(r"\b((train|mine)-[0-9a-f]{4})\b", said.stdout + said.stderr)
        newest.update({name: run for run, name in found})
    wait_gone(me.cluster)
