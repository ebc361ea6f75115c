"""A tree is sent to a host's node program: what crosses the link, what the host keeps, and what each run gets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.errors import HostError, LinkLostError
from disttui.runner.hosts.link import Link
from disttui.runner.protocol import tree
from disttui.runner.protocol.objects import Store
from disttui.runner.protocol.requests import Op
from disttui.runner.sync import transfer
from disttui.runner.sync.collect import MOST, Wanted, collect
from disttui.runner.sync.transfer import TreeParcel, send
from disttui.runner.transport.local import LocalConnection
from tests.files import new_file, new_folder, tmpfs
from tests.kept import has_been_reached

RUN_DIR = "~/runs"


class Host:
    """This machine with a home of its own, and a folder that is sent there."""

    def __init__(self, tmp_path: Path, home: Path) -> None:
        self.tmp_path, self.home = tmp_path, home
        self.folder = tmp_path / "code"
        self.folder.mkdir()
        self.store = Store(str(tmp_path / "viewer"))
        self.objects = home / ".cache/disttui/objects"
        self.links: list[Link] = []
        self.told: list[str] = []
        self.most = MOST

    def open(self, node: int = 0) -> Link:
        self.links.append(Link(LocalConnection("local"), "local", sys.executable))
        return self.links[-1]

    def send(self, run: str, links: Iterable[Link] | None = None, to: str = "") -> Path:
        found = collect(Wanted(self.folder, most=self.most), self.store, self.tmp_path / "cache")
        to = to or f"{RUN_DIR}/{run}/code"
        send(
            TreeParcel(found.sha256, found.manifest, self.store, new=found.new), list(links or [self.open()]),
            run=run, run_dir=RUN_DIR, to=to, reopen=self.open, tell=lambda node, kind, note: self.told.append(note),
        )  # fmt: skip
        return Path(to).expanduser()

    def object(self, content: bytes) -> Path:
        name = tree.digest(content)
        return self.objects / name[:2] / name[2:]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    home = new_folder(tmp_path / "home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    has_been_reached(home)
    made = Host(tmp_path, home)
    yield made
    for link in made.links:
        link.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[transfer._Sent]:
    """The objects that have crossed a link."""
    found: list[transfer._Sent] = []
    real = transfer._Sender._packed

    def noted(self: Any, pieces: list[transfer._Sent]) -> Iterator[bytes]:
        found.extend(pieces)
        return real(self, pieces)

    monkeypatch.setattr(transfer._Sender, "_packed", noted)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that were sent."""
    found: list[str] = []
    real = Link._begin

    def noted(self: Link, op: Op, *arguments: Any) -> tuple[int, Future[Any]]:
        found.append(op)
        return real(self, op, *arguments)

    monkeypatch.setattr(Link, "_begin", noted)
    return found


def test_a_run_gets_a_copy_with_modes_and_links(host: Host) -> None:
    (host.folder / "lib").mkdir()
    new_file(host.folder / "lib/run.sh", "true\n", 0o755)
    (host.folder / "lib/link").symlink_to("run.sh")
    (host.folder / "empty").write_text("")
    strange = new_file(host.folder / os.fsdecode(b"new\nline\xff"), b"1")
    to = host.send("a-1")
    assert (to / strange.name).read_bytes() == b"1" and (to / "empty").read_bytes() == b""
    assert (to / "lib/run.sh").stat().st_mode & 0o100 and (to / "lib/link").readlink() == Path("run.sh")
    assert stat.S_IMODE(to.stat().st_mode) == 0o700 and stat.S_IMODE(host.objects.stat().st_mode) == 0o700
    assert sorted(path.name for path in to.parent.iterdir()) == ["code"]


def test_an_unchanged_tree_costs_one_request(host: Host, sent: list[transfer._Sent], asked: list[str]) -> None:
    (host.folder / "a.py").write_text("1")
    host.send("a-1")
    assert len(sent) == 2, "the manifest and the file"
    sent.clear()
    asked.clear()
    assert (host.send("a-2") / "a.py").read_text() == "1"
    assert sent == [] and asked == ["sync"]


def test_an_edit_costs_one_request(host: Host, sent: list[transfer._Sent], asked: list[str]) -> None:
    (host.folder / "a.py").write_text("1")
    (host.folder / "b.bin").write_bytes(os.urandom(1_000_000))
    host.send("a-1")
    assert asked == ["put", "put"], "first the manifest: so much is sent only where it is missing"
    asked.clear()
    sent.clear()
    (host.folder / "a.py").write_text("edited")
    assert (host.send("a-2") / "a.py").read_text() == "edited"
    assert asked == ["put"] and len(sent) == 2
    asked.clear()
    links = [host.open(), host.open()]
    (host.folder / "a.py").write_text("edited again")
    host.send("a-3", links)
    assert asked == ["sync", "sync", "put", "sync"], "hosts may share a store, which gets it once"


def test_an_edit_sends_one_object_and_changes_no_other_run(host: Host, sent: list[transfer._Sent]) -> None:
    for number in range(50):
        (host.folder / f"{number}.py").write_text(str(number))
    first = host.send("a-1")
    sent.clear()
    (host.folder / "7.py").write_text("edited")
    second = host.send("a-2")
    assert [one.size for one in sent][1:] == [6], "beside the manifest"
    assert (first / "7.py").read_text() == "7" and (second / "7.py").read_text() == "edited"
    with (first / "8.py").open("r+") as file:
        file.write("broken by the job")
    assert (host.send("a-3") / "8.py").read_text() == "8", "a run writes in its own copy"


def cut(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Break the first link in an upload after this many pieces."""
    real = Link.upload
    done: list[bool] = []

    def cutting(self: Link, op: Op, pieces: Iterable[bytes], **arguments: Any) -> Future[Any]:
        def some() -> Iterator[bytes]:
            for number, piece in enumerate(pieces):
                if number == after and not done:
                    done.append(True)
                    self.close()
                yield piece

        return real(self, op, some(), **arguments)

    monkeypatch.setattr(Link, "upload", cutting)


def test_a_cut_upload_is_continued(host: Host, sent: list[transfer._Sent], monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(24 << 20)
    (host.folder / "data.bin").write_bytes(content)
    cut(monkeypatch, after=250)
    to = host.send("a-1")
    assert (to / "data.bin").read_bytes() == content and "the link broke; reconnecting" in host.told
    assert 4 << 20 < sent[-1].offset < len(content), "it begins where the first has ended"
    assert list(Store(str(host.objects)).begun()) == []


def test_links_that_keep_breaking_are_an_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.folder / "a.py").write_text("1")

    def broken(self: Link, *_: object, **__: object) -> Future[Any]:
        raise LinkLostError("local", "the link broke")

    monkeypatch.setattr(Link, "upload", broken)
    with pytest.raises(HostError, match="the link broke"):
        host.send("a-1")
    assert not (host.home / "runs/a-1/code").exists()


def test_a_damaged_object_is_sent_again(host: Host, sent: list[transfer._Sent]) -> None:
    (host.folder / "a.py").write_bytes(b"good")
    host.send("a-1")
    host.object(b"good").write_bytes(b"evil")
    sent.clear()
    assert (host.send("a-2") / "a.py").read_bytes() == b"good"
    assert [one.size for one in sent] == [4]


def test_planted_links_and_files_are_not_used(host: Host, tmp_path: Path) -> None:
    (host.folder / "a.py").write_bytes(b"good")
    host.send("a-1")
    other = new_file(tmp_path / "evil", b"evil")
    host.object(b"good").unlink()
    host.object(b"good").symlink_to(other)
    assert (host.send("a-2") / "a.py").read_bytes() == b"good"
    assert other.read_bytes() == b"evil" and not host.object(b"good").is_symlink()
    (host.home / "runs/a-3").mkdir(0o700)
    (host.home / "runs/a-3/code").symlink_to(tmp_path)
    with pytest.raises(HostError, match="exists, and is not"):
        host.send("a-3")


@pytest.mark.root
def test_an_object_of_another_user_is_not_used(host: Host) -> None:
    (host.folder / "a.py").write_bytes(b"good")
    host.send("a-1")
    os.chown(host.object(b"good"), 12345, 12345)
    assert (host.send("a-2") / "a.py").read_bytes() == b"good"
    assert host.object(b"good").stat().st_uid == os.getuid()


def test_a_folder_that_others_can_write_is_refused(host: Host, tmp_path: Path) -> None:
    (host.folder / "a.py").write_bytes(b"1")
    shared = new_folder(tmp_path / "shared", 0o777)
    with pytest.raises(HostError, match="would not be safe from other users"):
        host.send("a-1", to=f"{shared}/a-1")


@pytest.mark.root
def test_a_full_disk_is_an_error_and_the_next_attempt_continues(host: Host) -> None:
    content = os.urandom(6 << 20)
    (host.folder / "data.bin").write_bytes(content)
    with tmpfs(host.objects, "size=4m,mode=0700"):
        with pytest.raises(HostError, match=r"6\.3 MB .* the disk has 4\.\d MB free") as caught:
            host.send("a-1")
        assert "free space" in caught.value.cure
        subprocess.run(["mount", "-o", "remount,size=64m", str(host.objects)], check=True)
        assert (host.send("a-2") / "data.bin").read_bytes() == content


@pytest.mark.root
def test_disk_without_inodes_is_named_and_the_retry_continues(host: Host) -> None:
    for number in range(40):
        (host.folder / f"{number}.py").write_text(str(number))
    with tmpfs(host.objects, "size=4m,nr_inodes=24,mode=0700"):
        with pytest.raises(HostError, match="has no free inodes"):
            host.send("a-1")
        subprocess.run(["mount", "-o", "remount,nr_inodes=4000", str(host.objects)], check=True)
        assert len(list(host.send("a-2").iterdir())) == 40


@pytest.mark.root
def test_a_disk_of_runs_without_inodes_is_named(host: Host) -> None:
    for number in range(40):
        (host.folder / f"{number}.py").write_text(str(number))
    with tmpfs(host.home / "runs", "size=4m,nr_inodes=24,mode=0700") as runs:
        with pytest.raises(HostError, match=r"No space left on device \(the disk of .* has no free inodes \(24"):
            host.send("a-1")
        assert list(runs.glob("*/*")) == [], "no part of a copy is left"


def test_hosts_with_one_home_get_each_object_once(host: Host, sent: list[transfer._Sent]) -> None:
    for number in range(20):
        (host.folder / f"{number}.py").write_text(str(number))
    to = host.send("a-1", [host.open() for _ in range(4)])
    assert len(sent) == 21 and len(list(to.iterdir())) == 20
    assert sorted(path.name for path in to.parent.iterdir()) == ["code"]


def test_viewers_at_the_same_time_disturb_none(host: Host) -> None:
    content = os.urandom(3 << 20)
    (host.folder / "data.bin").write_bytes(content)
    with ThreadPoolExecutor(4) as pool:
        copies = list(pool.map(host.send, ("a-0", "a-1", "a-2", "a-3")))
    assert [(copy / "data.bin").read_bytes() == content for copy in copies] == [True] * 4


@pytest.mark.parametrize("data", [b"junk", b"x" * 100_000], ids=["short", "long"])
def test_bytes_that_are_no_stream_are_refused(host: Host, data: bytes) -> None:
    link = host.open()
    request: dict[str, Any] = {
        "run": "a-1",
        "run_dir": RUN_DIR,
        "tree": "0" * 64,
        "size": 1,
        "to": f"{RUN_DIR}/a-1/code",
    }
    with pytest.raises(HostError, match="arrived damaged"):
        link.upload("put", [data], **request).result(30)
    assert link.request("sync", **request)["manifest"] is False, "the link still works"


def test_the_code_goes_with_its_run(host: Host, tmp_path: Path) -> None:
    (host.folder / "a.py").write_bytes(b"1")
    to = host.send("a-1", to=f"{tmp_path}/else/a-1")
    inside = host.send("a-1")
    link = host.open()
    node = host.home / "runs/a-1/0"
    node.mkdir(0o700)
    (node / "spec.json").write_text(f'{{"run": "a-1", "tree": "{"0" * 64}", "workdir": "{to}"}}')
    (node / "exit.json").write_text('{"state": "finished"}')
    assert link.request("files", run="a-1", run_dir=RUN_DIR, node_rank=0)["files"] == []
    link.request("forget", run="a-1", run_dir=RUN_DIR, node_rank=0)
    assert not to.exists() and not inside.exists() and (host.folder / "a.py").exists()


def test_code_whose_data_takes_hours_is_kept(host: Host) -> None:
    (host.folder / "a.py").write_bytes(b"1")
    code = host.send(f"a-{0:016x}")
    past = code.stat().st_mtime - 8 * 3600
    os.utime(code, (past, past))
    host.send(f"a-{1:016x}")
    assert code.exists()


def test_code_of_runs_that_never_started_is_removed(host: Host) -> None:
    (host.folder / "a.py").write_bytes(b"1")
    first, second, third = (f"a-{number:016x}" for number in range(3))
    code = host.send(first)
    host.send(second)
    assert code.exists()
    os.utime(code, (1e9, 1e9))
    host.send(third)
    assert not code.parent.exists() and (host.home / "runs" / second / "code").exists()
