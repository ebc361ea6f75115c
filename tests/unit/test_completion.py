"""Profiles, hosts and ids of runs complete in real shells, and paths of hosts in the wizard."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click
import pytest

from disttui.runner.cli.options import _offered, complete_profiles
from disttui.runner.node.serve.listing import MOST, complete
from tests.command import ran
from tests.files import new_file

# Each prints the words that the shell would offer for the last of the words it is given.
SHELLS = {
    "bash": """eval "$(disttui completion bash)"; compopt() { :; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _disttui_completion disttui; printf '%s\\n' "${COMPREPLY[@]}" """,
    "zsh": """compdef() { :; }; eval "$(disttui completion zsh)"
compadd() { print -l -- $completions; }; _describe() { print -l -- ${${(P)3}%%:*}; }; _path_files() { :; }
words=("$@"); CURRENT=$#; _disttui_completion""",
    "fish": "disttui completion fish | source; complete -C (string join ' ' -- $argv) | string split -f 1 \\t",
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home with two runs, a profile, and a host in the ssh configuration."""
    for run in ("mine-1a2b", "other-3c4d"):
        (tmp_path / "data/disttui/runs" / run).mkdir(parents=True)
        (tmp_path / "data/disttui/runs" / run / "run.json").touch()
    (tmp_path / "config/disttui/profiles").mkdir(parents=True)
    (tmp_path / "config/disttui/profiles/own.yaml").write_text(
        "disttui: 1\nhosts: [alice@gpubox2]\njob: {builtin: bytegpt}\n"
    )
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host gpubox gp*\n  HostName 192.0.2.1\n")
    return {
        "HOME": str(tmp_path), "XDG_DATA_HOME": f"{tmp_path}/data", "XDG_CONFIG_HOME": f"{tmp_path}/config",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8",
        "DISTTUI_SSH_CONFIG": f"{tmp_path}/.ssh/config",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_what_a_shell_offers(shell: str, environ: dict[str, str], tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} on this machine")

    def offered(*words: str) -> set[str]:
        given = [shell, "-c", SHELLS[shell], *([shell] if shell != "fish" else []), "disttui", *words]
        done = ran(given, cwd=tmp_path, env=environ)
        return set(done.stdout.split())

    assert offered("stop", "") == {"mine-1a2b", "other-3c4d"}
    assert offered("logs", "mi") == {"mine-1a2b"}
    assert {"own", "2node", "2node-fsdp"} <= offered("run", "")
    assert offered("profile", "plan", "2node-") == {"2node-fsdp"}
    assert offered("probe", "") == {"local", "alice@gpubox2", "gpubox"}
    assert offered("ps", "--host", "gp") == {"gpubox"}
    assert {"mine-1a2b", "example"} <= offered("runs", "replay", "")
    assert offered("comp") == {"completion"}
    assert offered("ow") == {"own"}, "a profile in the place of a command"


def test_a_shell_is_offered_no_name_that_it_would_run_or_divide(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    folder = Path(environ["XDG_CONFIG_HOME"]) / "disttui/profiles"
    strange = (
        "own$(id)",
        "own`id`",
        "own;id",
        "own two",
        "own\nplain,id",
        "own\x1b[2J",
        "own\u202e",
        "-own",
        "~own",
        "[ab]own",
        "own[ab]",
    )
    for name in (*strange, "own-modèle", "own_2.5"):
        (folder / f"{name}.yaml").write_text((folder / "own.yaml").read_text())
    context = click.Context(click.Command("run"))
    assert [item.value for item in complete_profiles(context, None, "own")[1:]] == ["own", "own-modèle", "own_2.5"]
    assert not [item.value for item in complete_profiles(context, None, "-")[1:]]


def test_an_address_is_offered_with_its_brackets() -> None:
    found = _offered(["[fd00::1]:22", "me@[fd00::1]", "me@box:22", "[ab]"], "")
    assert [item.value for item in found] == ["[fd00::1]:22", "me@[fd00::1]", "me@box:22"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("project/train.py", "project/tools/x", "project/table.csv", "project/.hidden", "other"):
        new_file(tmp_path / name)
    return tmp_path


def test_scripts_come_first_and_folders_end_in_a_slash(home: Path) -> None:
    assert complete("t", "~/project") == {"names": ["train.py", "table.csv", "tools/"], "more": False}
    assert complete("tools/", "project")["names"] == ["tools/x"]
    assert complete("~/p", "/")["names"] == ["~/project/"]
    assert complete(f"{home}/o", "/nowhere")["names"] == [f"{home}/other"]


def test_hidden_files_are_offered_after_a_typed_dot(home: Path) -> None:
    assert ".hidden" not in complete("", "~/project")["names"]
    assert complete(".", "~/project")["names"] == [".hidden"]


def test_the_answer_is_bounded(home: Path) -> None:
    for number in range(MOST + 10):
        (home / "project" / f"many-{number}").touch()
    answer = complete("many", "~/project")
    assert len(answer["names"]) == MOST and answer["more"]


def test_undecodable_names_can_be_sent(home: Path) -> None:
    (home / "project" / b"caf\xe9".decode("utf-8", "surrogateescape")).touch()
    assert complete("caf", "~/project")["names"] == ["caf?"]


def test_a_folder_that_is_not_there_is_an_error(home: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        complete("nowhere/x", "~")
