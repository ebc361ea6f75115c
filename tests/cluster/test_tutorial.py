"""The commands of the pages, as they are printed there, on the hosts that they name."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.typed import COMMAND, User, wait_gone
from tests.command import ran

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ACCELERATE = "distributed_type: MULTI_CPU\nnum_machines: 2\nnum_processes: 2\nmachine_rank: 0\nmixed_precision: 'no'\n"
_RUN = re.compile(r"\b(train|mine|2node|mine-sweep)-[0-9a-f]{4}(?:[0-9a-f]{4})?\b")


def _commands(*pages: str) -> list[str]:
    text = "".join((ROOT / page).read_text() for page in pages)
    return re.findall(r"^ {4}(disttui .*)$", text, re.MULTILINE)


def _type(me: User, lines: list[str]) -> dict[str, tuple[int, str]]:
    """Type commands one after the other, about the runs that those before them have begun; what became of each."""
    config = me.cluster.ssh_config
    text = config.read_text()
    config.write_text(text + re.sub(r"\bnode(?=[12]\b)", "box", text))
    for host in me.cluster.hosts:
        (host.home / ".venv").symlink_to(ROOT / ".venv")
    folder = me.home / "project"
    shutil.copytree(ROOT / "examples" / "ddp", folder)
    (profile,) = (
        block
        for block in re.findall(r"```yaml\n(.*?)```", (DOCS / "tutorial.md").read_text(), re.DOTALL)
        if "name: mine" in block
    )
    (folder / "mine.yaml").write_text(profile)
    (folder / "default_config.yaml").write_text(ACCELERATE)
    newest: dict[str, str] = {}
    ended = {}
    for line in lines:
        if line.endswith("-o mine.yaml"):  # a file that is there is not replaced
            (folder / "mine.yaml").unlink()
        typed = _RUN.sub(lambda found: newest[found[1]], line.replace("alice@", "").partition(" && ")[0])
        words = shlex.join([COMMAND, "--ssh-config", str(config)]) + typed.removeprefix("disttui")
        said = ran(words, shell=True, cwd=folder, env=me.environment(COLUMNS="200"), timeout=300)
        ended[line] = said.returncode, said.stdout + said.stderr
        newest.update((found[1], found[0]) for found in _RUN.finditer(said.stdout + said.stderr))
    return ended


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_every_command_of_the_tutorial_does_what_it_says(user: Callable[..., User]) -> None:
    me = user(2)
    lines = [line for line in _commands("docs/tutorial.md") if not line.startswith("disttui top")]  # a screen
    for line, (code, said) in _type(me, lines).items():
        assert code == int("--steps 20" in line), f"{line}: exit code {code}\n{said}"
    wait_gone(me.cluster)


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_every_command_of_the_other_pages_does_what_it_says(user: Callable[..., User]) -> None:
    me = user(2)
    lines = [
        "disttui run 2node",
        "disttui runs pull @latest --to results",
        *_commands("docs/metrics.md", "docs/parallel.md", "docs/sharing.md", "docs/interop.md", "README.md"),
    ]
    left_out = ("disttui  ", "disttui runs replay", "--to wandb")  # the app, and an account of wandb
    lines = [line for line in lines if not any(words in line for words in left_out)]
    refused = {"--gpus 0,1": "this host has no GPU", "disttui shell": "a shell needs a terminal"}
    for line, (code, said) in _type(me, lines).items():
        reason = next((reason for words, reason in refused.items() if words in line), "")
        assert (code != 0) == bool(reason) and reason in said, f"{line}: exit code {code}\n{said}"
    wait_gone(me.cluster)
