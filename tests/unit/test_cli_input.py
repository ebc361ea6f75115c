"""What is typed wrong on a command line: one clear sentence with its cure, exit code 2, no host asked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn, cast

import pytest
from click.testing import CliRunner

from disttui.runner.api.probing import probe
from disttui.runner.api.viewer import Viewer
from disttui.runner.cli.app import cli
from disttui.runner.errors import HostError, InputError
from disttui.runner.profile.sections import Host, parse_host
from disttui.runner.runs.registry import KnownHost
from tests.command import disttui
from tests.unit.liar_kit import lied

PROFILE = "disttui: 1\nhosts: [local]\njob: {builtin: bytegpt, args: [--stepz, 3]}\n"

WRONG = [
    (
        "profile validate bad.yaml",
        "bad.yaml: job.args: unrecognized arguments: --stepz 3 (disttui profile bytegpt lists",
    ),
    ("run bad.yaml", "bad.yaml: job.args: unrecognized arguments"),
    ("profile validate 2nod", "profile '2nod' not found\n  → Did you mean 2node?"),
    ("profile validate .", ". is a folder\n  → Name a profile in it."),
    ("profile plan -", "profiles are not read from standard input\n  → Save it in a file."),
    ("top --once nope.yaml", "profile 'nope.yaml' not found"),
    ("run 2node --sandbox --detach", "a sandbox ends with its command, and cannot run in the background"),
    ("run 2node --when-free --ignore-leases", "--when-free and --ignore-leases exclude each other"),
    ("lease add box1 --until 2020-01-01", "--until '2020-01-01' is in the past\n  → Give a later time."),
    ("lease add box1 --until 500d", "--until '500d' is more than a year away\n  → Give an earlier time, or never."),
    ("ps --host local --run-dir rel", "'--run-dir': expected an absolute path on the host, or one that"),
    ("ps --host local --run-dir /a\x07", "'--run-dir': expected an absolute path"),
    ("ps --host a$b", "'a$b' is not a host: 'a$b' contains '$'\n  → Give an ssh alias, user@host:port or local."),
    ("runs gc --older=", "--older '': not a duration\n  → Give 90s, 10m, 12h, 30d or 2w."),
    ("runs gc --over=", "--over '': not a size\n  → Give 500MiB or 10GiB."),
    ("runs metrics --try /dev/zero", "/dev/zero: not a regular file"),
    ("runs metrics --try pipe", "pipe: not a regular file"),
    ("runs metrics --try bad.yaml --pattern " + "(" * 3000, "--pattern is not a regular expression: maximum recursion"),
    ("profile import pipe --script a.py", "pipe: cannot be read: not a regular file\n  → Name a file to import."),
    ("profile validate pipe.yaml", "pipe.yaml: not a regular file, but profiles are read more than once\n  → Save it"),
    ("run train.py", "train.py is a script, but no hosts are given\n  → Name them: disttui run train.py --hosts box1"),
    ("profile plan train.py", "train.py: a Python script, not a profile\n  → Run it with disttui run train.py --hosts"),
    ("run train.py --hosts -x", "--hosts: '-x' begins with '-', like an option of ssh"),
    (
        "run train.py --hosts a --lr 3",
        "--lr is not an option of disttui run\n  → Put it after --: disttui run train.py",
    ),
    (
        "run train.py --hosts a --nproc_per_node=2",
        "--nproc_per_node is not an option of disttui run\n  → Set the number per host: --set num_processes=2. If it",
    ),
    ("run -m pkg.train --hosts a", "-m is not an option of disttui run\n  → Name the module in a profile, as job: {"),
    ("run mine.yaml --max-restarts 3", "--max-restarts is not an option of disttui run\n  → Set it: --set launch.res"),
    (
        "run --hosts a torchrun train.py",
        "torchrun is a program that starts scripts, not a profile\n  → disttui starts it",
    ),
    ("run bin/torchrun --hosts a -- train.py", "torchrun is a program that starts scripts, not a profile"),
    ("run code --hosts a", "code is a folder\n  → Name the script in it: disttui run code/train.py --hosts box1"),
    (
        "run a.ipynb --hosts a",
        "a.ipynb is a notebook, not a Python script\n  → Convert it, then run the script: jupyter nbconvert --to",
    ),
    (
        "run a.sh --hosts a",
        "a.sh is a shell script, not a Python script\n  → Put it into a profile as job.command: [ba",
    ),
    (
        "run a.sbatch",
        "a.sbatch is a shell script, not a Python script\n  → Make a profile of it: disttui profile import a.sba",
    ),
    ("run accelerate --set x=1", "--set x=…: unknown key 'x'"),
    ("run start --hosts a", "start is a shell script, not a Python script\n  → Put it into a profile as job.command"),
    ("run trainer", "trainer is a script, but no hosts are given\n  → Name them: disttui run trainer --hosts box1"),
    ("run train.py --hosts=", "--hosts: no host given\n  → Give names as for ssh"),
    ("run train.py --hosts local,n[1-2],local", "--hosts: local is named twice\n  → Name each host once"),
    ("run bad.yaml --hosts a -- --lr 1", "only scripts take arguments after --, not the profile bad.yaml"),
    ("show 2node-7f3a", "'show' is now 'disttui runs show'."),
    ("queue", "'queue' is now 'disttui lease queue'."),
    ("pss", "No such command 'pss'. Did you mean 'ps'?"),
    ("runs list", "'runs list' is 'disttui ps'."),
    ("runs stop x", "'runs stop' is 'disttui stop'."),
    ("runs shwo", "No such command 'shwo'. Did you mean 'show'?"),
    ("trian.py", "trian.py: file not found"),
    ("runs replay nope", "no run 'nope' is known here\n  → List runs: disttui ps."),
    ("runs replay @latest", "no runs are known here"),
    ("shell ", "a shell needs a terminal, but standard input is not one\n  → Use disttui exec '' -- COMMAND"),
    ("top a b", "the app needs a terminal, but standard input is not a terminal\n  → Use disttui top a b --once"),
    ("probe bad.yaml", "bad.yaml is a file, not a host\n  → For a profile: disttui check bad.yaml"),
    ("run dangling.yaml", "dangling.yaml: broken link to gone"),
    ("run " + "n" * 300, "profile 'nnn"),
    ("bda.yaml", "profile 'bda.yaml' not found\n  → Did you mean bad.yaml?"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line[:60] for line, _ in WRONG])
def test_one_sentence_and_the_exit_code_of_bad_input(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(PROFILE)
    (tmp_path / "code").mkdir()
    for name in ("train.py", "code/a.py", "code/train.py", "a.ipynb", "a.sh"):
        (tmp_path / name).touch()
    (tmp_path / "start").write_text("#!/bin/bash -l\nexec true\n")
    (tmp_path / "a.sbatch").write_text("#!/bin/bash\n#SBATCH -N 2\nsrun torchrun train.py\n")
    (tmp_path / "accelerate").write_text(PROFILE)
    (tmp_path / "trainer").write_text("#!/usr/bin/env python3\nprint()\n")
    (tmp_path / "dangling.yaml").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.yaml")
    env = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = disttui(*line.split(" "), cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout


def test_a_host_that_looks_like_a_run_is_called_unknown_too(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = disttui("exec", "no.such.invalid-7f3a", "--", "true", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert done.stdout.endswith("does not resolve; and no run no.such.invalid-7f3a is known here\n"), done.stdout


def test_a_host_that_is_down_is_not_taken_for_a_run(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host node-2024\n  HostName 127.0.0.1\n  Port 1\n")
    env = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    env["DISTTUI_SSH_CONFIG"] = str(config)
    done = disttui("exec", "node-2024", "--", "true", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "refuses the connection" in done.stdout and "no run" not in done.stdout, done.stdout


def test_thousands_of_unknown_arguments_are_summarized(tmp_path: Path) -> None:
    args = ", ".join([f"--a{number}" for number in range(9000)] + [f"--{'b' * 9000}"])
    (tmp_path / "bad.yaml").write_text(PROFILE.replace("--stepz, 3", args))
    done = disttui("profile", "validate", "bad.yaml", cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 2 and len(done.stderr) < 500
    assert "arguments: --a0 --a1 " in done.stderr and " … and 8,979 more (disttui" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "line", ["probe local", "check local", "exec local -- true", "top --once local", "lease list local"]
)
def test_config_mistake_is_not_blamed_on_a_host(line: str, tmp_path: Path) -> None:
    """`probe` and others printed it as that of each host, with exit code 3, `exec` with 255."""
    (tmp_path / "disttui").mkdir()
    (tmp_path / "disttui/config.yaml").write_text("on_end: x\n")
    env = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = disttui(*line.split(" "), cwd=tmp_path, env=env)
    assert done.returncode == 2 and not done.stdout
    assert f"{tmp_path}/disttui/config.yaml: 'on_end' is not a setting\n  → Known settings: " in done.stderr


@pytest.mark.parametrize(("line", "code"), [("ps --host local", 0), ("stop x", 2), ("logs x", 2), ("attach x", 2)])
def test_runs_can_be_listed_and_stopped_with_a_broken_config(line: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "disttui").mkdir()
    (tmp_path / "disttui/config.yaml").write_text("on_end: x\n")
    env = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = disttui(*line.split(" "), cwd=tmp_path, env=env)
    assert done.returncode == code and "'on_end' is not a setting; the config is ignored\n" in done.stderr
    assert code == 0 or "no run" in done.stderr, done.stderr


def test_a_variable_that_names_no_file_is_named(tmp_path: Path) -> None:
    env = {**os.environ, "DISTTUI_SSH_CONFIG": str(tmp_path / "gone")}
    done = disttui("ps", env=env)
    assert done.returncode == 2 and "(env var: 'DISTTUI_SSH_CONFIG')" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "'a b' is not a host: 'a b' contains ' '\n  → Give an ssh alias, user@host:port or local."),
        ("a:0", "'a:0' is not a host: '0'\n  → Give a port from 1 to 65535."),
        ("\x1b[2J", "'\\x1b[2J' is not a host: '\\x1b[2J' contains '\\x1b'\n"),
        ("gpu-n\u043ede", "'gpu-n\u043ede' is not a host: character 6 of 'gpu-n\u043ede' is CYRILLIC SMALL LETTER O"),
        ("u@local", "'u@local' is not a host: 'local' is this machine, without SSH\n  → Write localhost to reach it"),
    ],
)
def test_a_host_that_is_typed_wrong(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_host(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("gpus", "what"), [("1", "GPU 1"), ("2,0", "GPUs 0, 2")])
def test_leased_gpus_are_counted(monkeypatch: pytest.MonkeyPatch, gpus: str, what: str) -> None:
    monkeypatch.setattr("disttui.lease", lambda viewer, hosts, *rest, **more: hosts)
    done = CliRunner().invoke(cli, ["lease", "add", "n1", "--gpus", gpus, "--until", "never"])
    assert done.output == f"n1: {what} until you release it\n"


def test_a_host_may_have_a_name_of_another_script() -> None:
    for name in ("\u043a\u043e\u0442-1", "gpu\u673a\u5668"):
        assert parse_host(name).name == name


def test_a_host_that_is_named_twice_is_probed_once() -> None:
    asked = []

    class Nobody:
        def ask(self, host: Host, op: str, **arguments: object) -> NoReturn:
            asked.append(host.name)
            raise HostError(host.name, "is asleep", "Wake it.")

    found = probe(cast(Viewer, Nobody()), ["local", "box1", "local"])
    assert sorted(asked) == ["box1", "local"] and [one.host for one in found] == ["local", "box1"]


def test_a_host_that_is_typed_has_its_address_for_a_name() -> None:
    assert parse_host("alice@[fd00::1]:22").name == "alice@[fd00::1]:22"


def test_queue_of_an_empty_name_is_refused(tmp_path: Path) -> None:
    """Every run's id begins with it: the queue of all runs was printed."""
    lied(tmp_path, KnownHost("local", "local"))
    done = disttui("lease", "queue", "", env={**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)})
    assert done.returncode == 2 and "'' is not a host" in done.stderr
