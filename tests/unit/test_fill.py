"""The beginning of a log that was mirrored from its tail on comes whole, through the real node program."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.hosts.link import Item, Link
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.runs.remote import TAIL, Reached, fill, sync
from disttui.runner.runs.store import HostStore
from disttui.runner.transport.local import LocalConnection, LocalStream
from tests.files import new_file
from tests.kept import has_been_reached

MIB = 1 << 20
SIZE = 50 * MIB + 777
LOG = "attempt-1/rank-0.log"


@cache
def whole_log() -> bytes:
    return b"".join(b"%031d\n" % at for at in range(0, SIZE, 32))[:SIZE]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A finished run's log on its host."""
    path = new_file(tmp_path / "runs/t-1234/0" / LOG, whole_log())
    (path.parents[1] / "exit.json").write_text('{"state": "finished", "code": 0}')
    return path


@pytest.fixture
def run(tmp_path: Path, log: Path) -> KnownRun:
    return KnownRun("t-1234", tmp_path / "mirror", (KnownHost("local", "local"),), {}, str(log.parents[3]), 0.0, "me")


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    monkeypatch.setenv("HOME", str(has_been_reached(tmp_path)))
    opened = Link(LocalConnection(), "local", sys.executable)
    yield opened
    opened.close()


@pytest.fixture
def store(run: KnownRun, link: Link) -> HostStore:
    """The mirror as `attach` leaves it: of the log only the tail."""
    assert sync(run, run.folder, Reached({0: link})) == {}
    store = HostStore(run.folder / "0")
    assert store.files()[LOG] == (SIZE - TAIL, SIZE)
    return store


def test_every_byte_comes(run: KnownRun, link: Link, store: HostStore, log: Path) -> None:
    fill(link, run, 0, store, LOG)
    assert store.files()[LOG] == (0, SIZE)
    assert (store.folder / LOG).read_bytes() == log.read_bytes()
    assert HostStore(store.folder).files()[LOG] == (0, SIZE)


def test_no_more_comes_than_is_asked_for(run: KnownRun, link: Link, store: HostStore, log: Path) -> None:
    fill(link, run, 0, store, LOG, 40 * MIB)
    assert store.files()[LOG] == (40 * MIB, SIZE)
    assert b"".join(data for _, data in store.read(LOG)) == log.read_bytes()[40 * MIB :]


def test_what_is_not_kept_is_said_and_the_rest_has_come(run: KnownRun, link: Link, store: HostStore, log: Path) -> None:
    whole = log.read_bytes()
    first = 20 * MIB
    with log.open("r+b") as file:
        file.truncate(0)
        file.truncate(first)
        file.seek(first)
        file.write(whole[first:])
    if log.stat().st_blocks * 512 >= SIZE:
        pytest.skip("this file system makes no holes")
    with pytest.raises(HostError, match=r"the first 20,971,520 bytes of attempt-1/rank-0.log were deleted"):
        fill(link, run, 0, store, LOG)
    assert store.files()[LOG] == (first, SIZE)
    assert b"".join(data for _, data in store.read(LOG)) == whole[first:]


def test_a_mirror_that_is_taken_away_is_one_clear_error(run: KnownRun, link: Link, store: HostStore) -> None:
    shutil.rmtree(store.folder)
    with pytest.raises(DisttuiError, match="were removed"):
        fill(link, run, 0, store, LOG)
    assert "runs" in link.request("list", run_dir=run.run_dir), "the link is of use still"


def test_a_log_that_is_gone_is_one_clear_error(run: KnownRun, link: Link, store: HostStore, log: Path) -> None:
    log.unlink()
    with pytest.raises(HostError, match="No such file"):
        fill(link, run, 0, store, LOG)
    assert store.files()[LOG] == (SIZE - TAIL, SIZE)


@pytest.fixture
def twin(log: Path) -> Path:
    """A second log of the same size."""
    path = log.with_name("rank-1.log")
    path.write_bytes(log.read_bytes().translate(bytes.maketrans(b"0123456789", b"abcdefghij")))
    return path


class Slow(threading.Event):
    """Whether the link is slow, how many bytes it has carried since it is, and after how many it is silent."""

    carried = 0
    limit = SIZE


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """A link that carries 64 KiB in 10 ms while this is set."""
    slow, read = Slow(), LocalStream.read

    def read_slowly(stream: LocalStream, size: int, timeout: float | None = None) -> bytes:
        time.sleep(0.01 if slow.is_set() else 0)
        while slow.is_set() and slow.carried >= slow.limit:
            time.sleep(0.01)
        data = read(stream, 65536, timeout)
        slow.carried += len(data) if slow.is_set() else 0
        return data

    monkeypatch.setattr(LocalStream, "read", read_slowly)
    return slow


def test_data_in_flight_for_one_log_never_enters_another(
    run: KnownRun, twin: Path, slow: Slow, link: Link, store: HostStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.folder / LOG).unlink()
    (store.folder / LOG).mkdir()
    slow.set()
    monkeypatch.setattr("disttui.runner.runs.remote.REACH", 100.0)
    with pytest.raises(DisttuiError, match="Is a directory"):
        fill(link, run, 0, store, LOG)
    assert slow.carried < 16 * MIB, "of the 32 MiB that were asked for: what is not wanted any more is cancelled"
    slow.clear()
    name = f"attempt-1/{twin.name}"
    fill(link, run, 0, store, name)
    assert (store.folder / name).read_bytes() == twin.read_bytes()


def test_a_link_whose_reads_cannot_be_ended_is_closed(
    run: KnownRun, slow: Slow, link: Link, store: HostStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.folder / LOG).unlink()
    (store.folder / LOG).mkdir()
    slow.limit = 4 * MIB
    slow.set()
    monkeypatch.setattr("disttui.runner.runs.remote.REACH", 0.0)
    with pytest.raises(DisttuiError, match="Is a directory"):
        fill(link, run, 0, store, LOG)
    with pytest.raises(HostError, match="the link broke"):
        link.request("list", run_dir=run.run_dir)
    slow.clear()


def test_reads_come_one_after_another(run: KnownRun, log: Path, link: Link) -> None:
    came: list[int] = []

    def take(item: Item) -> None:
        if isinstance(item, tuple):
            came.append(item[2] // (8 * MIB))

    request = {**run.request(), "node_rank": 0, "name": LOG, "length": 8 * MIB}
    reads = [link.stream("read", take, **request, offset=at * 8 * MIB) for at in range(3)]
    assert [read.result(60.0)["end"] // MIB for read in reads] == [8, 16, 24]
    assert len(came) >= 3 * 8 and sum(a != b for a, b in itertools.pairwise(came)) == 2


def test_a_log_that_begins_anew_meanwhile_is_left_alone(store: HostStore) -> None:
    store.announce({"file": 0, "name": LOG, "generation": 1, "size": 5, "start": 0})
    store.write(0, 0, b"anew\n")
    store.put(LOG, 0, b"old bytes")
    store.fill(LOG, SIZE - TAIL, 0)
    assert store.files()[LOG] == (0, 5) and (store.folder / LOG).read_bytes() == b"anew\n"
    assert (store.folder / f"{LOG}~0").exists()
