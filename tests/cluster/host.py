"""One host of a test cluster: its namespaces, and what may happen to it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.hub import Hub, lose
from tests.files import new_file

_INIT = Path(__file__).with_name("init.py")
_UNSHARE = ("unshare", "-n", "-p", "-u", "-i", "-m", "--fork", "--kill-child")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ClusterHost:
    """A host: network, PID, UTS, IPC and mount namespaces; own /root, /home, /tmp, /run and /dev/shm."""

    def __init__(self, name: str, address: str, folder: Path, hub: Hub, config: dict[str, Any]) -> None:
        self.name = name
        self.address = address
        self.home = folder / "home" / name
        """Its /root, as seen from outside. Survives a reboot."""
        self.log = folder / "log" / name
        """What its init and sshd have said."""
        self._folder = folder
        self._hub = hub
        self._config = config
        self._init: subprocess.Popen[str] | None = None
        self._pid = 0
        self.home.mkdir(parents=True)
        self.log.parent.mkdir(exist_ok=True)

    def power_on(self) -> None:
        """Start the host's init. The host is up after `plugged_in` and `wait_up`."""
        boot_id = new_file(self._folder / f"{self.name}.boot_id", f"{uuid.uuid4()}\n")
        binds = [*self._config["binds"], [str(boot_id), "/proc/sys/kernel/random/boot_id"]]
        config = {**self._config, "name": self.name, "home": str(self.home), "binds": binds}
        path = new_file(self._folder / f"{self.name}.json", json.dumps(config))
        with self.log.open("a") as log:
            self._init = subprocess.Popen(
                [*_UNSHARE, sys.executable, "-ISE", str(_INIT), str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={"PATH": _PATH, "LANG": "C.UTF-8"},
            )

    def wait_pid(self) -> int:
        """Return the pid of the host's init as seen outside, once it has made its mounts."""
        self._pid = int(self._answer())
        return self._pid

    def plugged_in(self) -> None:
        """Let it configure its network and start sshd."""
        self._tell("up")

    @property
    def root(self) -> Path:
        """Its file system as it sees it itself, with what it has mounted; while it is on."""
        return Path(f"/proc/{self._pid}/root")

    def wait_up(self) -> None:
        """Return when its sshd listens."""
        self._answer()

    def _tell(self, word: str) -> None:
        assert self._init is not None and self._init.stdin is not None, f"{self.name} is off"
        self._init.stdin.write(f"{word}\n")
        self._init.stdin.flush()

    def _answer(self) -> str:
        assert self._init is not None and self._init.stdout is not None, f"{self.name} is off"
        line = self._init.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} did not come up: {self.log.read_text().strip()}")
        return line

    def power_off(self) -> None:
        """Cut the power: every process dies at once, and no other host is notified."""
        if self._init is None:
            return
        if self._pid:
            self._hub.unplug(self.name)
        self.destroy()

    def destroy(self) -> None:
        """Kill the host's init, and wait until the kernel has ended every process with it."""
        if self._init is None:
            return
        # unshare returns when its child, the init, has: that is after every other process of the namespace.
        os.kill(self._pid or self._init.pid, signal.SIGKILL)
        self._init.wait()
        for pipe in (self._init.stdin, self._init.stdout):
            assert pipe is not None
            pipe.close()
        self._init, self._pid = None, 0

    def boot(self) -> None:
        """Switch the host on: its home is as it was, processes, /tmp and boot id are new."""
        self.power_on()
        self._hub.plug({self.name: self.wait_pid()})
        self.plugged_in()
        self.wait_up()
        # The viewer's kernel may hold for a moment longer that nobody has this address.
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                socket.create_connection((self.address, 22), 2).close()
            except OSError:
                time.sleep(0.1)
            else:
                return

    def reboot(self) -> None:
        """Cut the power and switch on again."""
        self.power_off()
        self.boot()

    def restart_sshd(self) -> None:
        """Restart the listening sshd; sessions go on, as with a real restart."""
        self._tell("sshd")
        self._answer()

    def drop_sessions(self) -> None:
        """Kill every sshd session, and with them the connections of all viewers."""
        for pid, command in self._scan():
            if command.startswith("sshd") and "[listener]" not in command:
                # One that was about to end may have ended since.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def cut(self) -> None:
        """Lose every packet from and to this host, silently, until `restore`."""
        self._hub.forward(self.name, on=False)

    def restore(self) -> None:
        """Undo `cut`."""
        self._hub.forward(self.name, on=True)

    def cut_from(self, other: ClusterHost) -> None:
        """Lose every packet between this host and `other` only, silently, until `mend_to`."""
        lose(self._pid, other.address, lost=True)
        lose(other._pid, self.address, lost=True)

    def cut_viewer(self, address: str, lost: bool) -> None:
        """Lose every packet from this host to the viewer's machine, silently (or lose them no more)."""
        lose(self._pid, address, lost)

    def mend_to(self, other: ClusterHost) -> None:
        """Undo `cut_from`."""
        lose(self._pid, other.address, lost=False)
        lose(other._pid, self.address, lost=False)

    def run(
        self, command: str | Sequence[str], *, timeout: float = 60, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside the host as root in /root, without SSH; a string goes through sh."""
        line = command if isinstance(command, str) else shlex.join(command)
        return subprocess.run(
            self.enter(line), capture_output=True, text=True, timeout=timeout, check=check, stdin=subprocess.DEVNULL
        )

    def enter(self, line: str) -> list[str]:
        """Return the command that runs a shell line inside the host, for a Popen of the caller's."""
        assert self._pid, f"{self.name} is off"
        env = ["HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh", f"PATH={_PATH}", "LANG=C.UTF-8"]
        inside = ["env", "-i", "-C", "/root", *env, "sh", "-c", line]
        return ["nsenter", "-t", str(self._pid), "-m", "-u", "-i", "-n", "-p", "--", *inside]

    def in_network(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs these words in the host's network alone: it is no process of the host."""
        assert self._pid, f"{self.name} is off"
        return ["nsenter", "-t", str(self._pid), "-n", "--", *words]

    def processes(self) -> list[tuple[int, str]]:
        """Return (pid as seen outside, command line) of every process but init and sshd's own."""
        return [(pid, command) for pid, command in self._scan() if not _is_sshd(pid)]

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process of this host, by its pid as seen outside."""
        assert pid in {known for known, _ in self._scan()}, f"{pid} is no process of {self.name}"
        os.kill(pid, number)

    def _scan(self) -> list[tuple[int, str]]:
        if not self._pid:
            return []
        namespace = Path(f"/proc/{self._pid}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self._pid:
                continue
            try:
                if (entry / "ns/pid").readlink() == namespace:
                    command = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                    found.append((int(entry.name), command.decode(errors="replace")))
            except OSError:
                continue
        return sorted(found)


def _is_sshd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("sshd")
    except OSError:
        return True
