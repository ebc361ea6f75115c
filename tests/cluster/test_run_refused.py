"""What cannot work is refused before anything is started: one clear message with host and cure, nothing left behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster.typed import User, typed
from tests.command import ran

Make = Callable[..., User]
_TRUE = {"command": ["true"]}


def _refused(me: User, profile: Path, *words: str) -> str:
    """Run it; returns the message, which begins with `node2:` and holds the words."""
    running = me.run(profile, code=3, merged=True)
    text = running.stdout
    assert "Traceback" not in text, text
    _, _, message = text.partition("disttui: node2: connecting\n")
    assert message.startswith(("disttui: node2: ", "disttui: node1: ")), text
    for word in ("node2: ", *words):
        assert word in message, text
    assert message.count("  → ") == 1, text
    for host in me.cluster.hosts:
        assert not (host.home / ".disttui").exists(), "something was started"
    return message


def _known(me: User, edit: Callable[[list[str]], str]) -> None:
    lines = me.cluster.known_hosts.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("node2,")]
    [own] = [line.split() for line in lines if line.startswith("node2,")]
    me.cluster.known_hosts.write_text("\n".join([*kept, edit(own)]) + "\n")


def test_host_keys(user: Make) -> None:
    """Unknown keys say how to accept them, changed ones how to be sure."""
    me = user(2)
    other = (me.cluster.folder / "key-node1.pub").read_text().split()[1]
    _known(me, lambda own: "# no key")
    message = _refused(me, me.profile(_TRUE), "host key is unknown", "SHA256:", "--accept-new-host-keys")
    fingerprint = ran(["ssh-keygen", "-lf", me.cluster.folder / "key-node2.pub"], check=True).stdout.split()[1]
    assert fingerprint in message
    me.cluster.known_hosts.write_text(
        "".join(line + "\n" for line in me.cluster.known_hosts.read_text().splitlines() if line != "# no key")
        + f"node2,{me.cluster[1].address} ssh-ed25519 {other}\n"
    )
    _refused(me, me.profile(_TRUE), "host key has changed", "ssh-keygen -R")


def test_no_python_on_the_path(user: Make) -> None:
    me = user(2)
    (me.cluster[1].home / ".bashrc").write_text("PATH=/nowhere\n")
    profile = me.profile(_TRUE, ["node1", {"host": "node2", "python": "auto"}])
    _refused(me, profile, "python3 not found on this host", "`python:`")


def test_a_user_without_a_login_shell_or_a_home_is_named(user: Make) -> None:
    me = user(1, logins={"closed": "/usr/sbin/nologin", "homeless": "/bin/sh"})
    me.cluster[0].run("rmdir /home/homeless || umount /home/homeless", check=True)
    said = " ".join(typed(me, "probe", "closed@node1", code=3).split())
    assert "closed@node1: this user has no login shell there" in said and "python" not in said
    said = " ".join(me.run(me.profile(_TRUE, ["homeless@node1"]), code=3).stderr.split())
    assert "/home/homeless" in said and "python3" not in said, said


def test_no_free_port(user: Make) -> None:
    """The ports of the first host count, where the gang and torch listen."""
    me = user(2)
    listen = (
        "import socket, time\nheld = [socket.create_server(('', port)) for port in (29500, 29501)]\n"
        "print(flush=True)\ntime.sleep(900)\n"
    )
    first, second = me.cluster.hosts
    with subprocess.Popen(second.enter(f'exec "{sys.executable}" -c "{listen}"'), stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        profile = me.profile(_TRUE, ["node2", "node1"], launch={"ports": "29500-29501"})
        running = me.start(profile, merged=True)
        assert running.wait() == 3
        [pid] = [pid for pid, command in second.processes() if "29500" in command]
        second.kill(pid)
    said = re.search(
        r"node2: no port from 29500 to 29501 is free: you hold 2 ports \(pid \d+: .*python", running.stdout
    )
    assert said and "\n  → Set other ports" in running.stdout, running.stdout
    running.wait_gone(10)
    assert not any((host.home / ".disttui").exists() for host in (first, second))


def test_a_start_that_fails_on_one_host_only(user: Make) -> None:
    """What the probe cannot foresee: no half of a gang is left on the others."""
    me = user(2)
    for host, inodes in zip(me.cluster.hosts, (1000, 4), strict=True):
        host.run(f"mkdir small && mount -t tmpfs -o size=100m,nr_inodes={inodes} tmpfs small", check=True)
    running = me.run(me.profile(_TRUE, launch={"run_dir": "~/small"}), code=3, merged=True)
    assert "disttui: node2: /root/small/t-" in running.stdout
    assert "cannot be written: No space left on device\n  → choose another launch.run_dir" in running.stdout


def test_different_torch_versions(user: Make) -> None:
    """A warning with both, from the files of the packages alone."""
    me = user(2)
    fake = me.cluster[1].home / "fake"
    packages = fake / "lib/python{}.{}/site-packages".format(*sys.version_info)
    (packages / "torch").mkdir(parents=True)
    (packages / "torch-2.9.1.dist-info").mkdir()
    (packages / "torch-2.9.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    (packages / "torch/version.py").write_text("__version__ = '2.9.1+cpu'\ncuda = None\n")
    (fake / "bin").mkdir()
    (fake / "bin/python").symlink_to(Path(sys.base_prefix) / "bin/python3")
    (fake / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
    profile = me.profile(_TRUE, ["node1", {"host": "node2", "python": "~/fake/bin/python"}])
    plan = ran(me.command("profile plan", "--json", profile), env=me.environment(), check=True)
    warnings = json.dumps(json.loads(plan.stdout))
    assert "2.9.1+cpu" in warnings
    assert "2.13.0" in warnings
