"""A run that is found on a host is that host's word: nothing of it is run or reached before the user has said yes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest

from disttui.runner.api import finding
from disttui.runner.runs.registry import load_run
from tests.command import disttui
from tests.files import new_file
from tests.kept import has_been_reached
from tests.unit.history_kit import DISTTUI, environ, kept
from tests.unit.liar_kit import liar, viewer

RUN = "evil-1a2b"


class Viewer:
    """A user at a machine that is also the host `local`, which lies about a run."""

    def __init__(self, home: Path, **changes: Any) -> None:
        self.home = has_been_reached(home)
        self.marker = home / "was-run"
        evil = new_file(home / "evil", f"#!/bin/sh\ntouch '{self.marker}'\nexec '{sys.executable}' \"$@\"\n", 0o755)
        touch = ["touch", str(self.marker)]
        self.profile: dict[str, Any] = {
            "disttui": 1, "name": "evil", "hosts": [{"host": "local", "name": "n0", "python": str(evil)}],
            "job": {"command": [str(evil), "-c", "pass"]}, "env": {"STOLEN": "${env:K}"},
            "on_end": {"command": touch},
        }  # fmt: skip
        spec = {"disttui": 1, "run": RUN, "node_rank": 0, "hosts": ["n0"], "nproc": [1], "by": "x@y", "started": 5.0,
                "profile": self.profile, **changes}  # fmt: skip
        folder = home / ".disttui" / "runs" / RUN / "0"
        folder.mkdir(parents=True, mode=0o700)
        (folder / "spec.json").write_text(json.dumps(spec))
        (folder / "exit.json").write_text(json.dumps({"t": 9.0, "state": "finished", "code": 0, "attempt": 1}))

    def env(self) -> dict[str, str]:
        return {**os.environ, **environ(self.home), "HOME": str(self.home)}

    def type(self, *words: str) -> tuple[int, str]:
        """Type a command where no terminal is."""
        done = disttui(*words, env=self.env())
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    def answer(self, what: str, *words: str) -> tuple[int, str]:
        """Type a command in a terminal, and answer its question."""
        child = pexpect.spawn(DISTTUI, list(words), env=self.env(), timeout=100, encoding="utf-8")
        child.expect(r"\[y/N\] ")
        asked = str(child.before)
        child.sendline(what)
        child.expect(pexpect.EOF)
        child.close()
        return int(child.exitstatus or 0), asked


@pytest.fixture
def here(tmp_path: Path) -> Viewer:
    return Viewer(tmp_path)


def test_attach_runs_nothing_of_what_a_host_says(here: Viewer) -> None:
    """Neither its `python` nor its `on_end`."""
    code, said = here.type("attach", "--plain", RUN, "--host", "local")
    assert (code, "finished" in said) == (0, True), said
    assert here.type("attach", "--plain", RUN)[0] == 0
    assert not here.marker.exists()
    known = load_run(here.home / "disttui" / "runs" / RUN)
    assert known.adopted and [vars(host) for host in known.hosts] == [
        {"name": "n0", "host": "local", "user": None, "port": None, "python": None, "nproc": 1, "transport": None}
    ]


def test_other_hosts_are_not_reached_before_a_yes(tmp_path: Path) -> None:
    hosts = ["n0", "box.invalid", "mallory@box2.invalid:2222"]
    here = Viewer(tmp_path, hosts=hosts, nproc=[1, 1, 1])
    for verb in ("attach", "stop", "runs pull", "logs", "runs show", "runs metrics", "diagnose", "runs forget"):
        code, said = here.type(*verb.split(), *(["--plain"] if verb == "attach" else []), RUN, "--host", "local")
        assert code == 2 and "local says that evil-1a2b also runs on box.invalid, mallory@box2.invalid:2222" in said
        assert "--trust-hosts" in said and not (tmp_path / "disttui" / "runs" / RUN).exists()
    code, asked = here.answer("n", "runs", "show", RUN, "--host", "local")
    assert code == 2 and "box.invalid" in asked and not (tmp_path / "disttui" / "runs" / RUN).exists()
    code, said = here.type("runs", "show", RUN, "--host", "local", "--trust-hosts")
    assert code == 0 and "finished" in said
    known = load_run(tmp_path / "disttui" / "runs" / RUN)
    # Which login and port are used there is the viewer's own ssh configuration's word.
    assert [(host.host, host.user, host.port) for host in known.hosts[1:]] == [
        ("box.invalid", None, None), ("box2.invalid", None, None),
    ]  # fmt: skip
    assert here.type("runs", "show", RUN, "--host", "local")[0] == 0, "asked once"
    assert not here.marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "nproc"),
    [
        (["n0", "../../home3"], [1, 1]), (["n0", "-oProxyCommand=x"], [1, 1]), (["n0", "a b"], [1, 1]),
        (["n0", "a\x1b[2Jb$(x)"], [1, 1]), (["n0", ".."], [1, 1]), (["n0"] * 5000, [1] * 5000), (["n0", "n1"], [1]),
        (["n0", 7], [1, 1]), ("n0", [1]), (["n0", "n1"], [1, -1]), (["n0", "n1"], [1, 10**400]), ([], []),
        (["n0", "n1"], [1, 10**12]),
        (["n0", "local"], [1, 1]), (["n0", "n0"], [1, 1]),
    ],
)  # fmt: skip
def test_invalid_host_name_is_refused(tmp_path: Path, hosts: Any, nproc: Any) -> None:
    here = Viewer(tmp_path, hosts=hosts, nproc=nproc)
    code, said = here.type("runs", "show", RUN, "--host", "local", "--trust-hosts")
    assert code in (2, 3) and "\x1b" not in said, said
    assert not (tmp_path / "disttui" / "runs" / RUN).exists()


def test_a_run_of_ours_stays_ours_whatever_a_host_says(here: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept(here.home, RUN)
    runs = [{"run": RUN, "node_rank": 0, "hosts": ["a"], "nproc": [1]}]
    box = liar(here.home, "box", f'yield {{"ok": {{"runs": {runs}}}}}')
    monkeypatch.setattr(finding, "parse_host", lambda _: box.as_host())
    found = finding.adopt(viewer(here.home), RUN, "box")
    assert found == made == load_run(made.folder)


def test_a_rerun_shows_what_a_host_wants_run_and_asks(here: Viewer) -> None:
    assert here.type("runs", "show", RUN, "--host", "local")[0] == 0
    code, said = here.type("rerun", RUN)
    assert code == 2 and "--trust-profile" in said and not here.marker.exists()
    code, asked = here.answer("n", "rerun", RUN)
    assert code == 2 and not here.marker.exists()
    for shown in ("n0 (local)", "python: on n0", "job.command", "on_end.command: on this machine", "touch", "${env:K}"):
        assert shown in asked, (shown, asked)
    code, said = here.type("rerun", RUN, "--trust-profile")
    assert here.marker.exists(), said
