"""The test cluster keeps its own promises: without that, tests on it prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster, ClusterHost
from tests.command import ran
from tests.unit.waiting import wait_for

Make = Callable[..., Cluster]

_CONNECT = """
import socket, sys
address, port, timeout = sys.argv[1:]
socket.create_connection((address, int(port)), float(timeout)).close()
print("ok")
"""
_SERVE = """
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("listening", flush=True)
while True:
    server.accept()
"""


def _reaches(host: ClusterHost, address: str, port: int = 22, timeout: float = 1) -> bool:
    done = host.run([sys.executable, "-c", _CONNECT, address, str(port), str(timeout)])
    return done.stdout == "ok\n"


def _ssh(cluster: Cluster, host: ClusterHost | str, command: str) -> str:
    done = ran(cluster.ssh(host, command))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hosts_are_different_machines(cluster: Make) -> None:
    """Own names, boot ids, homes, /tmp and processes."""
    one, two = cluster(2).hosts
    assert [host.run("hostname").stdout for host in (one, two)] == ["node1\n", "node2\n"]
    boot_ids = {host.run("cat /proc/sys/kernel/random/boot_id").stdout for host in (one, two)}
    assert len(boot_ids | {Path("/proc/sys/kernel/random/boot_id").read_text()}) == 3
    one.run("touch /tmp/a /run/a /dev/shm/a ~/a", check=True)
    assert two.run("ls -d /tmp/a /run/a /dev/shm/a ~/a 2>/dev/null").stdout == ""
    assert (one.home / "a").exists()
    assert sorted(Path(name).name for name in one.run("ls -d /sys/class/net/*").stdout.split()) == ["eth0", "lo"]
    assert "node2.sshd_config" not in one.run("ps ax -o args").stdout


def test_hosts_reach_each_other_and_the_viewer_by_tcp(cluster: Make) -> None:
    """A server on one host is reached from the other, and ssh works from outside and from host to host."""
    both = cluster(2)
    one, two = both.hosts
    with subprocess.Popen(
        one.enter(f"exec '{sys.executable}' -c '{_SERVE}'"), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        assert _reaches(two, one.address, 5000)
        [(pid, command)] = one.processes()
        assert "create_server" in command
        one.kill(pid, signal.SIGTERM)
    assert not one.processes()
    assert _ssh(both, two, "hostname; echo $HOME") == "node2\n/root\n"
    assert one.run(both.ssh(two, "hostname")).stdout == "node2\n"


def test_names_resolve_only_with_a_hosts_file(cluster: Make) -> None:
    """Without one, a host does not know its own name: the trap real machines set."""
    assert cluster(1)[0].run("getent hosts node1").stdout == ""
    with_file = cluster(2, hosts_file=True)
    assert with_file[1].run("getent hosts node1").stdout.split() == [with_file[0].address, "node1"]


def test_interpreter_and_project_are_visible_inside(cluster: Make) -> None:
    """The environment the tests run in works on the hosts."""
    host = cluster(1)[0]
    done = host.run([sys.executable, "-c", "import yaml, runner; print(runner.__file__)"])
    assert Path(done.stdout.strip()).exists(), done.stderr


def test_cut_and_restore(cluster: Make) -> None:
    """A cut host is unreachable while its link stays up; an open connection survives and works after the cut."""
    three = cluster(3)
    one, two, other = three.hosts
    talk = subprocess.Popen(three.ssh(two, "echo up; exec cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert talk.stdin is not None and talk.stdout is not None
    assert talk.stdout.readline() == b"up\n"
    two.cut()
    assert not _reaches(one, two.address)
    assert not _reaches(two, one.address)
    assert _reaches(one, other.address)
    assert "state UP" in two.run("ip link show eth0").stdout
    two.restore()
    wait_for(lambda: _reaches(one, two.address))
    talk.stdin.write(b"still here\n")
    talk.stdin.close()
    assert talk.stdout.read() == b"still here\n"
    assert talk.wait() == 0


def test_cut_between_two_hosts_only(cluster: Make) -> None:
    """Both stay reachable from elsewhere."""
    three = cluster(3)
    one, two, other = three.hosts
    one.cut_from(two)
    assert not _reaches(one, two.address)
    assert not _reaches(two, one.address)
    assert _reaches(one, other.address)
    assert _reaches(other, two.address)
    assert _ssh(three, two, "hostname") == "node2\n"
    one.mend_to(two)
    assert _reaches(one, two.address)
    assert _reaches(two, one.address)


def test_power_off_ends_every_process_silently(cluster: Make) -> None:
    """Detached processes die with the host, and peers get no farewell."""
    both = cluster(2)
    one, two = both.hosts
    session = subprocess.Popen(both.ssh(two, "setsid sleep 1000 & sleep 1000"), stdin=subprocess.DEVNULL)
    wait_for(lambda: len([command for _, command in two.processes() if command == "sleep 1000"]) == 2)
    before = [pid for pid, _ in two.processes()]
    two.power_off()
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)
    assert two.processes() == []
    assert not _reaches(one, two.address)
    assert session.poll() is None, "the peer noticed the loss of power"
    session.kill()
    session.wait()


def test_reboot_keeps_the_home(cluster: Make) -> None:
    """A rebooted host has its files, its host key and its address, and a new boot id."""
    one = cluster(1)
    [host] = one.hosts
    boot_id = host.run("touch ~/kept /tmp/lost; cat /proc/sys/kernel/random/boot_id").stdout
    host.reboot()
    assert _ssh(one, host, "ls ~/kept; test -e /tmp/lost || echo lost") == "/root/kept\nlost\n"
    assert _ssh(one, host, "cat /proc/sys/kernel/random/boot_id") != boot_id


def test_restart_sshd_keeps_sessions_drop_sessions_ends_them(cluster: Make) -> None:
    """As on a real machine: the restart is for new logins only."""
    one = cluster(1)
    [host] = one.hosts
    session = subprocess.Popen(one.ssh(host, "echo up; exec sleep 1000"), stdout=subprocess.PIPE)
    assert session.stdout is not None
    assert session.stdout.readline() == b"up\n"
    host.restart_sshd()
    assert _ssh(one, host, "echo new") == "new\n"
    assert session.poll() is None
    host.drop_sessions()
    assert session.wait(timeout=30) == 255
    assert _ssh(one, host, "echo again") == "again\n"


def test_orphans_are_reaped(cluster: Make) -> None:
    """PID 1 leaves no zombies behind."""
    host = cluster(1)[0]
    host.run("(setsid sh -c 'sleep 0.05' &)", check=True)
    wait_for(lambda: not host.processes())
    wait_for(lambda: " Z" not in host.run("ps ax -o pid,stat").stdout)


def test_clock_offset(cluster: Make) -> None:
    """What is started over SSH on that host sees another time, the other host does not."""
    both = cluster(2, clock_offset={"node2": 3600})
    skews = [float(_ssh(both, host, "date +%s")) - time.time() for host in both.hosts]
    assert abs(skews[0]) < 30
    assert 3570 < skews[1] < 3630


def _left(cluster: Cluster, pids: list[int]) -> list[str]:
    left = [f"process {pid}" for pid in pids if Path(f"/proc/{pid}").exists()]
    left += [str(path) for path in (cluster.folder, cluster.folder.with_suffix(".lock")) if path.exists()]
    if str(cluster.folder) in Path("/proc/mounts").read_text():
        left.append("a mount")
    if Path(f"/sys/class/net/dtui{cluster.folder.name}").exists():
        left.append("the viewer's interface")
    return left


def test_nothing_is_left(requires_cluster: None) -> None:
    """No process, mount, interface or folder outlives a cluster."""
    with Cluster(2) as cluster:
        subprocess.run(cluster.ssh("node2", "setsid sleep 1000 >/dev/null 2>&1 </dev/null &"), check=True, timeout=60)
        pids = [pid for host in cluster.hosts for pid, _ in host.processes()]
        assert pids
        assert _left(cluster, pids)
    assert _left(cluster, pids) == []


_CRASH = """
import os, signal
from tests.cluster import Cluster
with Cluster(2) as cluster:
    cluster[1].run("setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
    print(cluster.folder, *(pid for pid, _ in cluster[1].processes()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_after_a_crash(requires_cluster: None) -> None:
    """The hosts end with the process that made them, and the next cluster removes the rest."""
    root = Path(__file__).parents[2]
    crashed = ran([sys.executable, "-c", _CRASH], cwd=root)
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr
    folder, *pids = crashed.stdout.split()
    assert pids
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    with Cluster(1):
        pass
    assert not Path(folder).exists()
    assert not Path("/sys/class/net", f"dtui{Path(folder).name}").exists()


def test_two_clusters_at_once_have_their_own_networks(cluster: Make) -> None:
    """Test sessions beside each other do not meet."""
    first, second = cluster(1), cluster(1)
    assert first[0].address != second[0].address
    assert not _reaches(first[0], second[0].address)


NOISE = {
    "bash": (".bashrc", "echo NOISE from bashrc; printf 'no newline at the end'\n"),
    "zsh": (".zshenv", "echo NOISE from zshenv\n"),
    "fish": (".config/fish/config.fish", "echo NOISE from fish\n"),
    "tcsh": (".cshrc", "echo NOISE from cshrc\n"),
    "dash": (".profile", "echo NOISE from profile\n"),
}


@pytest.mark.parametrize("shell", NOISE)
def test_the_remote_command_in_every_login_shell(cluster: Make, shell: str) -> None:
    """The constant remote command starts the loader under this login shell, noise before the marker or not."""
    from disttui.runner.hosts.ship import COMMAND

    path = f"/usr/bin/{shell}"
    assert os.access(path, os.X_OK), f"{path} is needed: install the Debian package {shell}"
    one = cluster(1, logins={"quiet": path, "noisy": path})
    [host] = one.hosts
    file, text = NOISE[shell]
    host.run(f"mkdir -p $(dirname ~noisy/{file}); cat > ~noisy/{file} <<'EOF'\n{text}EOF", check=True)
    for login in ("quiet", "noisy"):
        loader = "import sys,os;print('\\nMARKER',os.environ['SHELL'],repr(sys.stdin.read()),sys.path[:1]==['']);\n"
        done = ran(one.ssh(f"{login}@{host.name}", COMMAND.format(python="python3")), input=f"{loader}hello\n")
        assert done.stdout.splitlines()[-1] == f"MARKER {path} 'hello\\n' False", (done.stdout, done.stderr)
        if login == "noisy" and shell != "dash":
            assert "NOISE" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_hosts_by_hand_are_there_until_ctrl_c(requires_cluster: None, number: int) -> None:
    """`make cluster` says how its hosts are reached, and leaves nothing behind, also where its terminal is closed."""
    opened = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster", "1"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert opened.stdout is not None
    with opened.stdout:
        config = next(line.partition("=")[2].strip() for line in opened.stdout if "DISTTUI_SSH_CONFIG=" in line)
        done = ran(["ssh", "-F", config, "node1", "hostname"])
        assert done.stdout == "node1\n", done.stderr
        opened.send_signal(number)
        assert opened.wait(60) == 0
    assert not Path(config).parent.exists()
