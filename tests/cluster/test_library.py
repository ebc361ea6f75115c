"""Two users on two hosts share a library through a repository on a third, by the commands of docs/library.md."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.command import ran

DOCS = Path(__file__).parents[2] / "docs/library.md"
BIN = Path(sys.executable).parent


def commands() -> list[list[str]]:
    """The commands of the page, block by block, up to the second heading."""
    page = DOCS.read_text().split("\n## ")[1]
    return [block.strip().splitlines() for block in re.findall(r"```sh\n(.*?)```", page, re.S)]


@pytest.mark.git
def test_five_commands_share_a_library_between_two_hosts(cluster: Callable[..., Cluster]) -> None:
    made = cluster(3)
    alice, bob, hub = made.hosts
    made.ssh_config.write_text(
        f"Host hub\n  HostName {hub.address}\n  HostKeyAlias {hub.name}\n{made.ssh_config.read_text()}"
    )

    def typed(host: str, line: str, codes: tuple[int, ...] = (0,)) -> str:
        home = f"git config --global user.name {'alice' if host == alice.name else 'bob'}"
        there = f"export PATH={shlex.quote(str(BIN))}:$PATH; {home}; {line}"
        done = ran(made.ssh(host, there))
        assert done.returncode in codes, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr * (0 not in codes)

    for host in (alice, bob):
        (host.home / ".ssh").mkdir(exist_ok=True)
        (host.home / ".ssh/config").write_text(f"Include {made.ssh_config}\n")
    first, second = commands()[:2]
    assert len(first) + len(second) == 5
    for line in first:
        typed(alice.name, line)
    for line in second:
        typed(bob.name, line)
    edit = "EDITOR='sed -i {}' disttui library edit team/2node; disttui library sync team"
    typed(alice.name, edit.format("s/restarts:.0/restarts:\\ 3/"))
    assert "1 edit sent" in typed(bob.name, edit.format("s/batch-size/batch/;s/Two.boxes/Three\\ boxes/"))
    typed(alice.name, "disttui library sync team")
    shown = [(host.home / ".local/share/disttui/libraries/team/2node.yaml").read_text() for host in (alice, bob)]
    assert shown[0] == shown[1]
    assert "restarts: 3 " in shown[0] and "Three boxes" in shown[0] and "# attempts after a failure" in shown[0]
    subjects = typed(bob.name, "disttui library history team/2node")
    assert "bob" in subjects and "2node: launch.restarts" in subjects and len(subjects.splitlines()) == 3

    # The same key: both versions are kept, on both hosts.
    same = "EDITOR='sed -i s/restarts:.3/restarts:\\ {}/' disttui library edit team/2node"
    for host, number in ((alice, 5), (bob, 7)):
        typed(host.name, same.format(number))
    for host in (alice, bob, alice):
        typed(host.name, "disttui library sync team", (0, 1))
    folders = [host.home / ".local/share/disttui/libraries/team" for host in (alice, bob)]
    for folder in folders:
        found = {file.name: re.findall(r"restarts: (\d)", file.read_text()) for file in folder.glob("2node*.yaml")}
        assert found == {"2node.yaml": ["5"], "2node@bob.yaml": ["7"]}
    # An edit while the repository is away is saved, and sent when it is back.
    there, away = hub.home / "profiles.git", hub.home / "away.git"
    there.rename(away)
    typed(bob.name, "EDITOR='sed -i s/restarts:.5/restarts:\\ 6/' disttui library edit team/2node")
    assert "cannot reach" in typed(bob.name, "disttui library sync team", (3,))
    away.rename(there)
    assert "1 edit sent" in typed(bob.name, "disttui library sync team")
    # What was is restored by anybody, and reaches everybody.
    typed(alice.name, "disttui library sync team")
    first_commit = typed(alice.name, "disttui library history team/2node").splitlines()[-1].split()[0]
    typed(alice.name, f"disttui library restore team/2node {first_commit}; disttui library sync team")
    typed(bob.name, "disttui library sync team")
    for folder in folders:
        assert "restarts: 0 " in (folder / "2node.yaml").read_text()
