"""`data` on real hosts without shared folders: from the viewer, from a host and from an address, each copied once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cluster.test_sync import left, received, slow
from tests.cluster.typed import User, typed
from tests.files import new_file

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

_TRAIN = """\
import glob, hashlib, os
for path in sorted(glob.glob(os.path.expanduser("~/data/*")) + glob.glob(os.path.expanduser("~/data/set/*/*"))):
    if os.path.isfile(path):
        found = hashlib.sha256(open(path, "rb").read()).hexdigest()
        print("rank", os.environ["RANK"], os.path.basename(path), found, flush=True)
"""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def lines(said: str) -> set[str]:
    return set(re.findall(r"rank \d \S+ [0-9a-f]{64}", said))


def expected(hosts: int, **files: bytes) -> set[str]:
    return {f"rank {rank} {name} {digest(data)}" for rank in range(hosts) for name, data in files.items()}


@contextlib.contextmanager
def served(me: User, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server of the viewer's; its address for the hosts, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_: object) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer((me.cluster.viewer_address, 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{me.cluster.viewer_address}:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_viewer_data_is_sent_once_and_then_only_changes(user: Callable[..., User]) -> None:
    me = user(2)
    source = me.home / "set"
    (source / "a").mkdir(parents=True)
    files = {"one.bin": os.urandom(6 << 20), "two.bin": os.urandom(2 << 20)}
    for name, data in files.items():
        (source / "a" / name).write_bytes(data)
    (source / ".gitignore").write_text("*.bin\n")
    (source / ".env").write_text("TOKEN=1\n")
    wanted = [{"to": "~/data/set", "from": str(source)}]
    profile = me.profile({"script": str(me.script(_TRAIN))}, data=wanted)
    since = left(me)
    first = me.run(profile)
    assert lines(first.stdout) == expected(2, **files)
    assert 8 << 20 < left(me) - since < 12 << 20, "once, with the node program and the start"
    assert "~/data/set: not sent: .env (8B): looks like a secret" in first.stderr
    assert not (me.cluster[0].home / "data/set/.env").exists()
    own = me.cluster[1].home / "data/set/a"
    assert all((own / name).stat().st_nlink == 2 for name in files), "it takes its room once"

    before = [(own / name).stat() for name in files]
    (source / "a/two.bin").write_bytes(changed := os.urandom(2 << 20))
    for _ in range(2):
        since = left(me)
        assert lines(me.run(profile).stdout) == expected(2, **{**files, "two.bin": changed})
    assert left(me) - since < 1 << 20, "unchanged, nothing is sent"
    assert (own / "one.bin").stat().st_ino == before[0].st_ino

    (own / "one.bin").write_bytes(b"spoiled by a job")
    assert lines(me.run(profile).stdout) == expected(2, **{**files, "two.bin": changed})


def test_data_of_one_host_reaches_the_others_without_the_viewer(user: Callable[..., User]) -> None:
    me = user(3)
    content = os.urandom(8 << 20)
    there = new_file(me.cluster[1].home / "data/tokens.bin", content)
    data = [{"to": "~/data/tokens.bin", "from": f"{me.cluster[1].name}:~/data/tokens.bin"}]
    profile = me.profile({"script": str(me.script(_TRAIN))}, data=data)
    inode = there.stat().st_ino
    since = left(me)
    assert lines(me.run(profile).stdout) == expected(3, **{"tokens.bin": content})
    assert left(me) - since < 4 << 20 and there.stat().st_ino == inode
    arrived = [received(host) for host in me.cluster.hosts]
    there.write_bytes(content := os.urandom(8 << 20))
    assert lines(me.run(profile).stdout) == expected(3, **{"tokens.bin": content})
    grown = [received(host) - before for host, before in zip(me.cluster.hosts, arrived, strict=True)]
    assert grown[1] < 4 << 20 < 8 << 20 < min(grown[0], grown[2])

    others = ", ".join(host.address for host in me.cluster.hosts[1:])
    me.cluster[0].run(
        "nft add table inet t && nft add chain inet t in '{ type filter hook input priority 0; }' && "
        f"nft add rule inet t in ip saddr '{{ {others} }}' drop",
        check=True,
    )
    there.write_bytes(os.urandom(1 << 20))
    failed = typed(me, "run", profile, code=3)
    said = f"{me.cluster[0].name}: data ~/data/tokens.bin from {me.cluster[1].name}:~/data/tokens.bin: "
    assert said + "cannot reach the host that has the data" in failed and "launch.ports" in failed


def test_an_address_is_fetched_by_one_host_and_checked(user: Callable[..., User]) -> None:
    me = user(2)
    (me.home / "web").mkdir()
    (me.home / "web/tokens.bin").write_bytes(content := os.urandom(3 << 20))
    with served(me, me.home / "web") as (address, asked):
        one = {"to": "~/data/tokens.bin", "from": f"{address}/tokens.bin", "sha256": digest(content)}
        profile = me.profile({"script": str(me.script(_TRAIN))}, data=[one])
        for _ in range(2):
            assert lines(me.run(profile).stdout) == expected(2, **{"tokens.bin": content})
        assert asked == ["/tokens.bin"], "one host asks, once"
        wrong = me.profile({"script": str(me.script(_TRAIN))}, data=[{**one, "sha256": "0" * 64}])
        failed = typed(me, "run", wrong, code=3)
        both = ", ".join(host.name for host in me.cluster.hosts)
        assert f"{both}: data ~/data/tokens.bin from {address}/tokens.bin: its SHA-256 is" in failed
        assert lines(failed) == set()
        assert (me.cluster[0].home / "data/tokens.bin").read_bytes() == content
    gone = me.profile({"script": str(me.script(_TRAIN))}, data=[{**one, "to": "~/data/other.bin"}])
    assert "cannot be fetched: " in typed(me, "run", gone, code=3)
    no_tool = me.profile({"script": str(me.script(_TRAIN))}, data=[{"to": "~/x", "from": "s3://bucket/x"}])
    assert "s3:// needs s5cmd or aws, which this host lacks" in typed(me, "run", no_tool, code=3)


def test_killed_viewer_leaves_old_data_and_received_parts(user: Callable[..., User]) -> None:
    me = user(2)
    source = new_file(me.home / "tokens.bin", old := os.urandom(1 << 20))
    data = [{"to": "~/data/tokens.bin", "from": str(source)}]
    profile = me.profile({"script": str(me.script(_TRAIN))}, data=data)
    assert lines(me.run(profile).stdout) == expected(2, **{"tokens.bin": old})
    source.write_bytes(new := os.urandom(16 << 20))
    parts = [host.home / "data/.disttui-data/objects/parts" for host in me.cluster.hosts]
    with slow(me):
        running = me.start(profile)
        running.wait_for(lambda: all(any(one.stat().st_size > 8 << 20 for one in path.glob("*.*")) for path in parts))
        assert "data: ~/data/tokens.bin: " in running.stderr and "B/s, " in running.stderr
        running.send(signal.SIGKILL)
        running.wait()
        assert all((host.home / "data/tokens.bin").read_bytes() == old for host in me.cluster.hosts)
        since = left(me)
        assert lines(me.run(profile).stdout) == expected(2, **{"tokens.bin": new})
    assert left(me) - since < 12 << 20, "it continues where it was"
    assert [list(path.iterdir()) for path in parts] == [[], []]


def test_foreign_files_are_kept_and_a_full_disk_is_reported(user: Callable[..., User]) -> None:
    me = user(2)
    source = new_file(me.home / "tokens.bin", os.urandom(3 << 20))
    other = new_file(me.cluster[1].home / "data/tokens.bin", "mine")
    data = [{"to": "~/data/tokens.bin", "from": str(source)}]
    profile = me.profile({"script": str(me.script(_TRAIN))}, data=data)
    failed = typed(me, "run", profile, code=3)
    assert f"{me.cluster[1].name}: data ~/data/tokens.bin from {source}: " in failed
    assert "exists, and is not from disttui" in failed and other.read_text() == "mine"
    me.cluster[0].run("mkdir /root/small && mount -t tmpfs -o size=2m tmpfs /root/small", check=True)
    small = me.profile({"script": str(me.script(_TRAIN))}, data=[{"to": "~/small/tokens.bin", "from": str(source)}])
    failed = typed(me, "run", small, code=3)
    assert "the files need 3.1 MB in /root/small/.disttui-data/objects, but the disk has" in failed
    assert lines(failed) == set()
