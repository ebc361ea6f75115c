"""What is typed wrong on a command line: one clear sentence with its cure, exit code 2, no host asked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn, cast

import pytest

from runner.api.probing import probe
from runner.api.viewer import Viewer
from runner.errors import HostError, InputError
from runner.profile import Host, parse_host
from tests.command import disttui

PROFILE = "disttui: 1\nhosts: [local]\njob: {builtin: bytegpt, args: [--stepz, 3]}\n"

WRONG = [
    ("validate bad.yaml", "bad.yaml: job.args: unrecognized arguments: --stepz 3 (disttui bytegpt lists the options)"),
    ("run bad.yaml", "bad.yaml: job.args: unrecognized arguments"),
    ("validate 2nod", "2nod: no profile has this name and no file this path\n  → Did you mean 2node?"),
    ("validate .", ".: this is a folder\n  → Name a profile in it."),
    ("plan -", "-: a profile is not read from standard input\n  → Save it in a file."),
    ("top --once nope.yaml", "nope.yaml: no profile has this name and no file this path"),
    ("run 2node --sandbox --detach", "a sandbox lives only as long as its command, so it cannot be left"),
    ("run local --priority 5 --when-free --set slurm.nodes=2", "--priority is of disttui's own queue"),
    ("run 2node --priority 5", "--priority needs --when-free\n  → Give both, or none."),
    ("run 2node --when-free --ignore-leases", "--when-free and --ignore-leases exclude each other"),
    ("lease box1 --until 2020-01-01", "--until '2020-01-01' is in the past\n  → Give a later time."),
    ("lease box1 --until 500d", "--until '500d' is more than a year away\n  → Give an earlier time, or never."),
    ("ps --host local --run-dir rel", "'--run-dir': expected a folder of the host, as an absolute path or one that"),
    ("ps --host local --run-dir /a\x07", "'--run-dir': expected a folder of the host"),
    ("ps --host a$b", "'a$b' is no host: 'a$b' holds '$'\n  → Give an ssh alias, user@host:port or local."),
    ("gc --older=", "--older '': no age\n  → Give 30d or 12h."),
    ("gc --over=", "--over '': no size\n  → Give 500MiB or 10GiB."),
    ("metrics --try /dev/zero", "/dev/zero: this is no regular file"),
    ("metrics --try pipe", "pipe: this is no regular file"),
    ("metrics --try bad.yaml --pattern " + "(" * 3000, "--pattern is no regular expression: maximum recursion"),
    ("import pipe --script a.py", "pipe: cannot be read: this is no regular file\n  → Name a file to import."),
    ("validate pipe.yaml", "pipe.yaml: this is no regular file, and a profile is read more than once\n  → Save it"),
    ("pss", "No such command 'pss'. Did you mean 'ps'?"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line[:60] for line, _ in WRONG])
def test_one_sentence_and_the_exit_code_of_bad_input(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(PROFILE)
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.yaml")
    env = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = disttui(*line.split(" "), cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout


def test_of_thousands_of_unknown_arguments_some_are_named_and_the_rest_is_counted(tmp_path: Path) -> None:
    args = ", ".join([f"--a{number}" for number in range(9000)] + [f"--{'b' * 9000}"])
    (tmp_path / "bad.yaml").write_text(PROFILE.replace("--stepz, 3", args))
    done = disttui("validate", "bad.yaml", cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 2 and len(done.stderr) < 500
    assert "arguments: --a0 --a1 " in done.stderr and " … and 8,979 more (disttui" in done.stderr, done.stderr


def test_a_variable_that_names_no_file_is_named(tmp_path: Path) -> None:
    env = {**os.environ, "DISTTUI_SSH_CONFIG": str(tmp_path / "gone")}
    done = disttui("ps", env=env)
    assert done.returncode == 2 and "(env var: 'DISTTUI_SSH_CONFIG')" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "'a b' is no host: 'a b' holds ' '\n  → Give an ssh alias, user@host:port or local."),
        ("a:0", "'a:0' is no host: '0'\n  → Give a port from 1 to 65535."),
        ("\x1b[2J", "'\\x1b[2J' is no host: '\\x1b[2J' holds '\\x1b'\n"),
        (
            "gpu-n\u043ede",
            "'gpu-n\u043ede' is no host: character 6 of 'gpu-n\u043ede' is CYRILLIC SMALL LETTER O",
        ),
        ("u@local", "'u@local' is no host: 'local' is this machine, without SSH\n  → Write localhost to reach it"),
    ],
)
def test_a_host_that_is_typed_wrong(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_host(text)
    assert str(caught.value).startswith(message)


def test_a_host_may_have_a_name_of_another_script() -> None:
    for name in ("\u043a\u043e\u0442-1", "gpu\u673a\u5668"):
        assert parse_host(name).name == name


def test_a_host_that_is_named_twice_is_probed_once() -> None:
    asked = []

    class Nobody:
        def open_link(self, host: Host) -> NoReturn:
            asked.append(host.name)
            raise HostError(host.name, "is asleep", "Wake it.")

    found = probe(cast(Viewer, Nobody()), ["local", "box1", "local"])
    assert sorted(asked) == ["box1", "local"] and [one.host for one in found] == ["local", "box1"]


def test_a_host_that_is_typed_has_its_address_for_a_name() -> None:
    assert parse_host("alice@[fd00::1]:22").name == "alice@[fd00::1]:22"
