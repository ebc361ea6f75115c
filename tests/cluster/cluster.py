"""The cluster: as many hosts as asked for, keys, and one SSH configuration that reaches them all."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.cluster import slot as slots
from tests.cluster.host import ClusterHost
from tests.cluster.hub import Hub

_TOOLS = ("unshare", "nsenter", "ip", "ssh", "ssh-keygen", "sshd")
_HIDDEN = ("/root", "/home", "/tmp", "/run", "/dev/shm")
_SEARCH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
_PROJECT = Path(__file__).resolve().parents[2]


@functools.lru_cache(maxsize=1)
def unavailable() -> str | None:
    """Return why no cluster can be made on this machine, or None."""
    if not sys.platform.startswith("linux"):
        return "a test cluster needs Linux"
    if os.geteuid() != 0:
        return "a test cluster needs root"
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_SEARCH) is None]
    if missing:
        return f"a test cluster needs {', '.join(missing)} (Debian: openssh-server openssh-client iproute2 util-linux)"
    trial = subprocess.run(["unshare", "-n", "-p", "-u", "-i", "-m", "-f", "true"], capture_output=True, check=False)
    return None if trial.returncode == 0 else f"no namespaces here: {trial.stderr.decode().strip()}"


class Cluster:
    """`n` hosts node1, node2, … on a subnet of their own; a context manager.

    Args:
        n: Number of hosts, at most 200.
        hosts_file: Whether the hosts' names resolve inside the hosts. By default they do not, which is what
            trips gloo up on real machines.
        logins: Further users by name, each with its login shell; root's is the machine's.
        clock_offset: Seconds by which the clock of a host (by name) is fast for everything started over SSH.
    """

    def __init__(
        self,
        n: int,
        *,
        hosts_file: bool = False,
        logins: Mapping[str, str] | None = None,
        clock_offset: Mapping[str, float] | None = None,
    ) -> None:
        assert 1 <= n <= 200
        self._n = n
        self._hosts_file = hosts_file
        self._logins = dict(logins or {})
        self._clock_offset = dict(clock_offset or {})
        self._cleanup = contextlib.ExitStack()
        self.hosts: list[ClusterHost] = []

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as undo:
            self._start(undo)
            self._cleanup = undo.pop_all()
        atexit.register(self.close)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End every host and remove what they were made of. May be called twice."""
        atexit.unregister(self.close)
        self._cleanup.close()

    def __getitem__(self, index: int) -> ClusterHost:
        return self.hosts[index]

    def ssh(self, host: ClusterHost | str, *command: str) -> list[str]:
        """Return the ssh command line that runs `command` on a host (or as user@host)."""
        name = host if isinstance(host, str) else host.name
        return ["ssh", "-F", str(self.ssh_config), "--", name, *command]

    def _start(self, undo: contextlib.ExitStack) -> None:
        slot = slots.take()
        undo.callback(slot.close)
        self.folder = slot.folder
        self.shared = slot.folder / "shared"
        """A folder that all hosts and the viewer see under the same path, as NFS would give."""
        self.ssh_config = slot.folder / "ssh_config"
        """Reaches every host by its name, from this machine and from the hosts alike."""
        self.viewer_address = f"10.77.{slot.number}.1"
        """This machine, as the hosts see it."""
        self.shared.mkdir()
        hub = Hub(slot.number)
        undo.callback(hub.close)
        addresses = {f"node{k}": f"10.77.{slot.number}.{10 + k}" for k in range(1, self._n + 1)}
        self._make_keys(list(addresses))
        self._write_client_files(addresses)
        binds = self._write_host_files(addresses)
        for name, address in addresses.items():
            host = ClusterHost(name, address, slot.folder, hub, self._host_config(name, address, binds))
            undo.callback(host.destroy)
            self.hosts.append(host)
            host.power_on()
        hub.plug({host.name: host.wait_pid() for host in self.hosts})
        for host in self.hosts:
            host.plugged_in()
        for host in self.hosts:
            host.wait_up()

    def _make_keys(self, names: list[str]) -> None:
        makers = [
            subprocess.Popen(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", self.folder / f"key-{name}"]
            )
            for name in ["client", *names]
        ]
        assert all(maker.wait() == 0 for maker in makers), "ssh-keygen failed"

    def _public_key(self, name: str) -> str:
        return (self.folder / f"key-{name}.pub").read_text()

    def _write_client_files(self, addresses: Mapping[str, str]) -> None:
        (self.folder / "authorized_keys").write_text(self._public_key("client"))
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text(
            "".join(f"{name},{address} {self._public_key(name)}" for name, address in addresses.items())
        )
        hosts = "".join(f"Host {name}\n  HostName {address}\n" for name, address in addresses.items())
        self.ssh_config.write_text(hosts + _SSH.format(folder=self.folder))

    def _write_host_files(self, addresses: Mapping[str, str]) -> list[list[str]]:
        binds = []
        if self._hosts_file:
            names = "".join(f"{address} {name}\n" for name, address in addresses.items())
            (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
            binds.append([str(self.folder / "hosts"), "/etc/hosts"])
        if self._logins:
            users = "".join(
                f"{user}:*:{uid}:{uid}::/home/{user}:{shell}\n"
                for uid, (user, shell) in enumerate(self._logins.items(), _FIRST_UID)
            )
            (self.folder / "passwd").write_text(Path("/etc/passwd").read_text() + users)
            binds.append([str(self.folder / "passwd"), "/etc/passwd"])
        return binds

    def _host_config(self, name: str, address: str, binds: list[list[str]]) -> dict[str, object]:
        sshd_config = self.folder / f"{name}.sshd_config"
        sshd_config.write_text(_SSHD.format(folder=self.folder, name=name) + self._environment(name))
        sshd = shutil.which("sshd", path=_SEARCH)
        assert sshd is not None
        return {
            "binds": binds,
            "homes": [[_FIRST_UID + k, f"/home/{user}"] for k, user in enumerate(self._logins)],
            "keep": _keep(),
            "link": f"link set lo up\naddr add {address}/24 dev eth0\nlink set eth0 up\n",
            "sshd": [sshd, "-D", "-e", "-f", str(sshd_config)],
        }

    def _environment(self, name: str) -> str:
        # /var/tmp, where leases lie, is the machine's.
        own = "SetEnv DISTTUI_LEASES=/dev/shm"
        if name not in self._clock_offset:
            return f"{own}\n"
        library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
        assert library is not None, "a clock that is off needs libfaketime (Debian: faketime)"
        # It breaks absolute sleeps by the monotonic clock, of which Python's are; they need no faking.
        patched = self.folder / library.name
        patched.write_bytes(library.read_bytes().replace(b"\0clock_nanosleep\0", b"\0clock_nanosleeq\0"))
        offset = self._clock_offset[name]
        return f"{own} LD_PRELOAD={patched} FAKETIME={offset:+}s FAKETIME_DONT_FAKE_MONOTONIC=1\n"


_FIRST_UID = 20001
_SSH = """\
Host *
  User root
  IdentitiesOnly yes
  IdentityFile {folder}/key-client
  StrictHostKeyChecking yes
  GlobalKnownHostsFile /dev/null
  UserKnownHostsFile {folder}/known_hosts
"""
_SSHD = """\
ListenAddress 0.0.0.0
HostKey {folder}/key-{name}
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 1000
MaxSessions 200
PrintMotd no
LogLevel ERROR
Subsystem sftp internal-sftp
"""


def _keep() -> list[str]:
    """Return the folders of this interpreter and this project that a host's private folders would hide."""
    needed = {str(Path(path).resolve()) for path in (sys.prefix, sys.base_prefix, _PROJECT)}
    return sorted(path for path in needed if path.startswith(tuple(f"{hidden}/" for hidden in _HIDDEN)))
