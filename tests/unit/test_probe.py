"""The whole probe on this machine: its shape, its speed, and that nothing can hang or break it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.hosts.facts import HostFacts
from disttui.runner.node.child import ask, together
from disttui.runner.node.probe import cpu, nics, report
from disttui.runner.node.probe.report import probe
from disttui.runner.node.serve import shell
from disttui.runner.protocol.facts import Facts
from tests.command import ran


def _over_the_wire(answer: Facts) -> HostFacts:
    return HostFacts.from_json(json.loads(json.dumps(answer)))


def test_a_shell_without_a_passwd_entry_is_sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHELL", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    monkeypatch.setattr(os, "execvpe", lambda file, words, env: started.extend([file, *words]))
    asked = {"run": "", "run_dir": "", "node_rank": 0, "rank": 0, "workdir": str(tmp_path), "activate": ""}
    shell.main(base64.urlsafe_b64encode(json.dumps(asked).encode()).decode())
    assert started == ["/bin/sh", "/bin/sh", "-i"]


def test_facts_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    facts = _over_the_wire(
        probe({"workdir": str(tmp_path), "script": "train.py", "python": sys.executable, "run_dir": f"{tmp_path}/a/b"})
    )
    assert facts.hostname == socket.gethostname()
    assert facts.euid == os.geteuid() and facts.kernel == platform.release()
    assert 1 <= facts.cpu.available <= facts.cpu.physical <= facts.cpu.logical
    assert 0 < facts.memory.available <= facts.memory.total
    assert facts.interpreters[0].source == "profile"
    assert facts.interpreters[0].version == platform.python_version()
    assert facts.workdir.script == str(tmp_path / "train.py") and facts.workdir.script_exists
    assert facts.disk.path == f"{tmp_path}/a/b" and facts.disk.writable and 0 < facts.disk.free <= facts.disk.total
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"], "a probe leaves nothing behind"
    assert any(nic.loopback and "127.0.0.1" in nic.addresses for nic in facts.nics)


def test_a_script_may_be_a_folder_with_a_main_file(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    found = _over_the_wire(probe({"workdir": str(tmp_path), "script": "job", "gpus": False})).workdir
    assert found.script == str(tmp_path / "job" / "__main__.py") and found.script_exists is False
    (tmp_path / "job" / "__main__.py").touch()
    assert _over_the_wire(probe({"workdir": str(tmp_path), "script": "job", "gpus": False})).workdir.script_exists


def test_without_arguments() -> None:
    facts = _over_the_wire(probe({}))
    assert facts.workdir.path == facts.home and facts.workdir.script_exists is None
    assert facts.free_port is None or 29500 <= facts.free_port <= 29599


def test_a_probe_starts_no_process_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting one takes longer than all else. Without a shim of a version manager in PATH, which has to be asked."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    started: list[object] = []
    real = subprocess.Popen

    def start(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        started.append(command)
        return real(command, **how)

    monkeypatch.setattr(subprocess, "Popen", start)
    probe({"gpus": False})
    assert started == []
    probe({"gpus": False, "activate": "true"})
    assert started, "the other way round it is seen"


def test_a_part_that_fails_or_hangs_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def broken() -> None:
        raise ValueError("nonsense in /proc")

    monkeypatch.setattr(cpu, "facts", broken)
    monkeypatch.setattr(nics, "facts", release.wait)
    monkeypatch.setattr(report, "_LIMIT", 2.0)
    facts = _over_the_wire(probe({"gpus": False}))
    release.set()
    assert "the host's cpu cannot be read: nonsense in /proc" in facts.problems
    assert "the host's nics cannot be read: no answer in 2 s" in facts.problems
    assert facts.cpu.available == 1 and facts.nics == ()


def test_a_machine_with_nothing_to_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on macOS: no /proc, no netlink, no affinity, no ifconfig either."""
    monkeypatch.delattr(socket, "AF_NETLINK", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(cpu.facts, "__defaults__", (str(tmp_path), str(tmp_path)))
    monkeypatch.setattr(nics, "ask", lambda *_: (_ for _ in ()).throw(FileNotFoundError("no ifconfig")))
    facts = _over_the_wire(probe({"gpus": False}))
    assert facts.nics == () and facts.cpu.logical >= 1
    assert not any("cannot be read" in problem for problem in facts.problems)


def test_a_silent_dns_costs_its_limit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait())
    problems: list[str] = []
    assert report.resolves(problems, limit=0.5) == []
    assert problems == ["the host's own name does not resolve: no answer in 0.5 s"]
    release.set()


def test_a_taken_port_is_passed_over() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert report.free_port([port, port]) is None
        assert report.free_port([port, min(port + 50, 65535)]) != port
    assert report.free_port([port, port]) == port
    assert report.free_port([65536, 65537]) is None


def test_run_dir_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    problems: list[str] = []
    disk = report.disk(f"{tmp_path}/file/runs", problems)
    assert not disk["writable"]
    assert problems == [f"run_dir {tmp_path}/file/runs: {tmp_path}/file cannot be written: Not a directory"]


def test_working_folder() -> None:
    home = str(Path.home())
    assert report.working_folder("") == report.working_folder("~") == home
    assert report.working_folder("project/../x") == f"{home}/x"
    assert report.workdir("/no/such", "../a.py") == {
        "path": "/no/such", "exists": False, "script": "/no/a.py", "script_exists": False,
    }  # fmt: skip


def _logind(root: Path, **files: str) -> str:
    (root / "run/systemd/system").mkdir(parents=True)
    for name, text in files.items():
        path = root / {"main": "etc/systemd/logind.conf"}.get(name, f"etc/systemd/logind.conf.d/{name}.conf")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[Login]\n" + text)
    return str(root)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"main": "#KillUserProcesses=no\n"}, False),
        ({"main": "#KillUserProcesses=yes\n"}, True),
        ({"main": "#KillUserProcesses=no\nKillUserProcesses = yes\n"}, True),
        ({"main": "KillUserProcesses=yes\n", "zz": "KillUserProcesses=no\n"}, False),
        ({"aa": "KillUserProcesses=no\n", "bb": "KillUserProcesses=yes\n"}, True),
        ({"main": "KillUserProcesses=yes\nKillExcludeUsers=root alice\n"}, False),
        ({"main": "KillUserProcesses=yes\nKillOnlyUsers=bob\n"}, False),
        ({"main": "KillUserProcesses=yes\nKillOnlyUsers=alice\n"}, True),
    ],
)
def test_logout_as_logind_reads_it(tmp_path: Path, files: dict[str, str], expected: bool | None) -> None:
    assert report.kills_user_processes("alice", _logind(tmp_path, **files)) is expected


def test_root_is_spared_by_default_and_no_systemd_is_unknown(tmp_path: Path) -> None:
    assert report.kills_user_processes("root", str(tmp_path)) is None
    assert report.lingers("root", str(tmp_path)) is None
    root = _logind(tmp_path, main="KillUserProcesses=yes\n")
    assert report.kills_user_processes("root", root) is False
    assert report.lingers("alice", root) is False
    (tmp_path / "var/lib/systemd/linger").mkdir(parents=True)
    (tmp_path / "var/lib/systemd/linger/alice").touch()
    assert report.lingers("alice", root) is True


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's ip(8)")
def test_addresses_are_those_that_ip_shows() -> None:
    try:
        shown = json.loads(subprocess.run(["ip", "-j", "addr"], capture_output=True, check=True, timeout=30).stdout)
    except FileNotFoundError:
        pytest.skip("no ip here")
    expected = {
        link["ifname"]: {item["local"] for item in link["addr_info"] if not item["local"].startswith("fe80:")}
        for link in shown
    }
    assert {nic["name"]: set(nic["addresses"]) for nic in nics.facts()} == expected


def test_speed(tmp_path: Path) -> None:
    folder = tmp_path / "class/net/lo"
    folder.mkdir(parents=True)
    for text, speed in (("25000\n", 25000), ("-1\n", None), ("4294967295\n", None), ("", None)):
        (folder / "speed").write_text(text)
        assert next(nic["speed"] for nic in nics.facts(str(tmp_path)) if nic["name"] == "lo") == speed


def test_ifconfig_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\toptions=1203<RXCSUM,TXCSUM>
\tinet 127.0.0.1 netmask 0xff000000
\tinet6 ::1 prefixlen 128
\tinet6 fe80::1%lo0 prefixlen 64 scopeid 0x1
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 00:00:5e:00:53:01
\tinet6 fe80::1c%en0 prefixlen 64 secured scopeid 0x6
\tinet 192.0.2.7 netmask 0xffffff00 broadcast 192.0.2.255
"""
    monkeypatch.delattr(socket, "AF_NETLINK", raising=False)
    monkeypatch.setattr(nics, "ask", lambda *_: ask(["printf", "%s", text], 10))
    lo, en = nics.facts()
    assert (lo["name"], lo["addresses"], lo["loopback"]) == ("lo0", ["127.0.0.1", "::1"], True)
    assert (en["name"], en["addresses"], en["up"], en["virtual"]) == ("en0", ["192.0.2.7"], True, False)


def test_stubborn_child_is_killed_and_its_output_kept() -> None:
    answer = ask(["sh", "-c", "trap '' TERM; echo out; echo err >&2; sleep 1000 & wait; sleep 1000"], 2.0)
    assert answer == (None, "out\n", "err\n")


def test_a_child_that_even_kill_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As one in uninterruptible sleep: here the KILL is swallowed instead."""
    real = os.killpg
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    assert ask(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 1000"], 2.0).code is None
    real(int((tmp_path / "pid").read_text()), 9)


def test_a_child_that_closes_its_output_is_still_waited_for() -> None:
    assert ask(["sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 7"], 30).code == 7


def test_a_child_that_never_stops_talking_is_killed() -> None:
    answer = ask(["yes"], 60)
    assert answer.code is None and len(answer.out) < 8 << 20


def test_together_keeps_results_errors_and_the_late_apart() -> None:
    release = threading.Event()
    found = together({"good": lambda: 1, "bad": lambda: 1 / 0, "late": release.wait}, 2.0)
    release.set()
    assert found["good"] == 1
    assert isinstance(found["bad"], ZeroDivisionError)
    assert isinstance(found["late"], TimeoutError)


def test_a_program_with_a_stuck_part_still_ends() -> None:
    code = (
        "import threading; from disttui.runner.node.child import together; "
        "print(together({'stuck': threading.Event().wait}, 0.1))"
    )
    done = ran([sys.executable, "-c", code], check=True)
    assert "no answer in 0.1 s" in done.stdout
