"""A log that outgrows its limit gives its oldest part back to the disk, and every offset stays true."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.errors import InputError
from disttui.runner.node.observe.log_limit import LogLimit
from disttui.runner.node.serve import reading
from disttui.runner.node.serve.mirror import Mirror
from disttui.runner.profile.load import parse
from disttui.runner.runs.store import HostStore

MIB = 1 << 20
LOG = "attempt-1/rank-0.log"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "attempt-1").mkdir(parents=True)
    return folder


def grow(path: Path, mib: int) -> int:
    """Append that many MiB of lines that tell their own offset; returns the size."""
    with path.open("ab") as file:
        for _ in range(mib * MIB // 32):
            file.write(b"%031d\n" % file.tell())
        return file.tell()


def mirror(run: Path, store: HostStore, tail: int | None = None) -> None:
    """Mirror all there is."""
    (run / "exit.json").write_text("{}")

    def tell(event: dict[str, Any]) -> None:
        if "file" in event:
            store.announce(event)

    def send(file: int, generation: int, offset: int, data: bytes) -> None:
        store.write(file, offset, data)

    Mirror(str(run), store.have(), tail, tell, send).run(threading.Event())
    store.close()


def test_the_newest_part_stays_where_it_is(run: Path) -> None:
    path = run / LOG
    said: list[Any] = []
    limit = LogLimit(str(path.parent), 4 * MIB, said.append)
    for _ in range(20):
        limit.look(0, grow(path, 1))
        if not path.stat().st_blocks * 512 >= path.stat().st_size or said:
            assert path.stat().st_blocks * 512 <= 6 * MIB
    if "cannot" in said[0]["text"]:
        pytest.skip("this file system makes no holes")
    assert len(said) == 1 and said[0]["level"] == "warning" and "rank 0" in said[0]["text"]
    data = path.read_bytes()
    assert len(data) == 20 * MIB
    assert data[-4 * MIB :] == b"".join(b"%031d\n" % at for at in range(16 * MIB, 20 * MIB, 32))


def test_late_viewer_gets_the_rest_and_a_follower_gets_all(run: Path, tmp_path: Path) -> None:
    path = run / LOG
    followed = HostStore(tmp_path / "followed")
    size = grow(path, 8)
    whole = path.read_bytes()
    mirror(run, followed)
    LogLimit(str(path.parent), 2 * MIB, lambda event: None).look(0, size)
    if path.stat().st_blocks * 512 >= size:
        pytest.skip("this file system makes no holes")
    late = HostStore(tmp_path / "late")
    mirror(run, late)
    start, end = late.files()[LOG]
    assert (start, end) == (6 * MIB, 8 * MIB)
    assert (tmp_path / "late" / LOG).read_bytes()[start:] == whole[start:]
    # One that lags behind goes on behind the hole; one that has all goes on as if there were none.
    size = grow(path, 8)
    LogLimit(str(path.parent), 2 * MIB, lambda event: None).look(0, size)
    again = HostStore(tmp_path / "followed")
    mirror(run, again)
    assert again.files()[LOG] == (14 * MIB, 16 * MIB)
    assert not list((tmp_path / "followed/attempt-1").glob("*~*"))
    assert (tmp_path / "followed" / LOG).read_bytes()[14 * MIB :] == path.read_bytes()[14 * MIB :]
    taken: list[tuple[int, bytes]] = []
    place: Any = {"name": LOG, "offset": 13 * MIB, "length": 2 * MIB}
    reading.read(str(run), place, lambda _, generation, offset, data: taken.append((offset, data)), threading.Event())
    assert taken[0][0] == 14 * MIB and sum(len(data) for _, data in taken) == MIB


def test_no_limit_no_hole(run: Path) -> None:
    path = run / LOG
    LogLimit(str(path.parent), None, lambda event: pytest.fail("said something")).look(0, grow(path, 4))
    assert path.stat().st_blocks * 512 >= 4 * MIB


def test_mpirun_log_flooded_by_strangers_stays_bounded(run: Path) -> None:
    """Without `launch.log_limit`, too."""
    path = run / "attempt-1/launcher.log"
    said: list[Any] = []
    limit = LogLimit(str(path.parent), None, said.append)
    limit.look_at_launcher()
    for _ in range(6):
        with path.open("ab") as file:
            file.write(b"x" * 16 * MIB)
        limit.look_at_launcher()
    if "cannot" in said[0]["text"]:
        pytest.skip("this file system makes no holes")
    assert len(said) == 1 and "the launcher's log has more than 64 MiB" in said[0]["text"]
    assert path.stat().st_size == 96 * MIB and path.stat().st_blocks * 512 <= 73 * MIB


def test_a_log_that_is_a_link_is_left_alone(run: Path, tmp_path: Path) -> None:
    grow(tmp_path / "precious", 4)
    (run / LOG).symlink_to(tmp_path / "precious")
    said: list[Any] = []
    LogLimit(str((run / LOG).parent), MIB, said.append).look(0, 4 * MIB)
    assert "keeps growing" in said[0]["text"] and b"\0" * 32 not in (tmp_path / "precious").read_bytes()


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("2GB", 2 * 10**9), ("1.5 MiB", 3 << 19), ("none", None)]
)
def test_the_profile_says_how_much(text: str, size: int | None) -> None:
    base = "disttui: 1\nhosts: [a]\njob: {builtin: bytegpt}\nlaunch: {log_limit: %s}\n"
    assert parse(base % text, "x.yaml").launch.log_limit == size
    for bad in ("2XB", "10", "1KiB", "-1MiB", "lots"):
        with pytest.raises(InputError, match=r"x\.yaml:4:.*log_limit"):
            parse(base % bad, "x.yaml")
