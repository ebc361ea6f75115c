"""The node's mirror server and the viewer's store, end to end: every byte exactly once, whatever happens between."""

from __future__ import annotations

import json
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.errors import DisttuiError
from disttui.runner.node.observe import log_limit
from disttui.runner.node.serve.mirror import Mirror
from disttui.runner.paths import PathError
from disttui.runner.protocol.limits import CHUNK
from disttui.runner.runs.store import HostStore
from tests.files import new_file


@contextmanager
def following(run: Path, store: HostStore, tail: int | None = None) -> Iterator[list[dict[str, Any]]]:
    """Mirror `run` into `store` while the block runs; yields the events reported so far."""
    events: list[dict[str, Any]] = []
    cancelled = threading.Event()

    def tell(event: dict[str, Any]) -> None:
        if "file" in event:
            store.announce(event)
        events.append(event)

    def send(file: int, generation: int, offset: int, data: bytes) -> None:
        store.write(file, offset, data)

    mirror = Mirror(str(run), store.have(), tail, tell, send)
    thread = threading.Thread(target=mirror.run, args=(cancelled,))
    thread.start()
    try:
        yield events
    finally:
        cancelled.set()
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def copied(run: Path, tmp_path: Path, content: bytes) -> Iterator[tuple[Path, Path]]:
    """A log that is mirrored whole when the block begins, and is followed while it runs; yields it and its copy."""
    log, copy = run / "attempt-1" / "rank-0.log", tmp_path / "mirror/attempt-1/rank-0.log"
    log.write_bytes(content)
    store = HostStore(tmp_path / "mirror")
    with following(run, store):
        eventually(lambda: copy.exists() and copy.stat().st_size == len(content))
        yield log, copy
    store.close()


def eventually(check: Any) -> None:
    waiting = threading.Event()
    for _ in range(2000):
        if check():
            return
        waiting.wait(0.01)
    raise AssertionError("it never came true")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "attempt-1").mkdir(parents=True)
    return folder


def test_mirror_follows_growth_and_ends_with_exit_json(run: Path, tmp_path: Path) -> None:
    store = HostStore(tmp_path / "mirror")
    log = run / "attempt-1" / "rank-0.log"
    with following(run, store) as events:
        written = b""
        for round_ in range(50):
            piece = bytes(f"line {round_} \x00\xff\n", "latin-1") * 997
            with log.open("ab") as file:
                file.write(piece)
            written += piece
            if round_ == 20:
                (run / "events.jsonl").write_text('{"e": "supervisor"}\n')
        new_file(run / "attempt-2" / "rank-0.log", b"second attempt\n")
        (run / "exit.json").write_text("{}")
        eventually(lambda: {"ended": True} in events)
    store.close()
    assert (tmp_path / "mirror/attempt-1/rank-0.log").read_bytes() == written
    assert (tmp_path / "mirror/attempt-2/rank-0.log").read_bytes() == b"second attempt\n"
    assert (tmp_path / "mirror/exit.json").read_text() == "{}"
    names = [event["name"] for event in events if "name" in event]
    assert names[-1] == "exit.json"


def test_attempt_begun_at_the_end_is_sent_before_exit_json(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def begins(path: str) -> Any:
        """Between the look for attempts and the look for files of the run."""
        found = list(scan(path))
        if path == str(run) and not (run / "exit.json").exists():
            new_file(run / "attempt-2" / "rank-0.log", b"second attempt\n")
            (run / "exit.json").write_text("{}")
        return found

    monkeypatch.setattr(os, "scandir", begins)
    store = HostStore(tmp_path / "mirror")
    with following(run, store) as events:
        eventually(lambda: {"ended": True} in events)
    store.close()
    names = [event["name"] for event in events if "name" in event]
    assert "attempt-2/rank-0.log" in names and names[-1] == "exit.json"


def test_a_new_link_goes_on_where_the_old_one_ended(run: Path, tmp_path: Path) -> None:
    with copied(run, tmp_path, b"a" * 100_000) as (log, mirrored):
        pass
    with log.open("ab") as file:
        file.write(b"b" * 50_000)
    again = HostStore(tmp_path / "mirror")
    with following(run, again) as events:
        eventually(lambda: mirrored.stat().st_size == 150_000)
    again.close()
    assert [event["start"] for event in events if event.get("name") == "attempt-1/rank-0.log"] == [100_000]
    assert mirrored.read_bytes() == log.read_bytes()


@pytest.mark.parametrize("regrown", [b"new", b"n" * 200_000])
def test_truncated_log_starts_a_new_generation(run: Path, tmp_path: Path, regrown: bytes) -> None:
    with copied(run, tmp_path, b"old" * 30_000) as (log, mirrored):
        pass
    log.write_bytes(regrown)
    again = HostStore(tmp_path / "mirror")
    with following(run, again):
        eventually(lambda: mirrored.exists() and mirrored.read_bytes() == regrown)
    again.close()
    assert (tmp_path / "mirror/attempt-1/rank-0.log~0").read_bytes() == b"old" * 30_000


def test_truncation_while_following(run: Path, tmp_path: Path) -> None:
    with copied(run, tmp_path, b"old" * 1000) as (log, mirrored):
        log.write_bytes(b"new")
        # Between two generations there is none of that name.
        eventually(lambda: [path.read_bytes() for path in mirrored.parent.glob(mirrored.name)] == [b"new"])


def test_a_log_that_is_emptied_and_filled_while_it_is_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at it and the read of what is new: as much is there as before, but nothing of it is the same."""
    with copied(run, tmp_path, b"old" * 1000) as (log, mirrored):

        def refill(handle: int, offset: int) -> int:
            if log.read_bytes().startswith(b"old"):
                log.write_bytes(b"new" * 2000)
            return log_limit.data_from(handle, offset)

        monkeypatch.setattr("disttui.runner.node.serve.mirror.data_from", refill)
        with log.open("ab") as file:
            file.write(b"more")
        eventually(lambda: [path.read_bytes() for path in mirrored.parent.glob(mirrored.name)] == [b"new" * 2000])


def test_late_viewer_gets_the_tail_of_logs_and_all_metrics(run: Path, tmp_path: Path) -> None:
    (run / "attempt-1" / "rank-0.log").write_bytes(b"0123456789" * 1000)
    (run / "attempt-1" / "rank-0.metrics.jsonl").write_text('{"step": 1}\n' * 1000)
    store = HostStore(tmp_path / "mirror")
    with following(run, store, tail=100) as events:
        eventually(lambda: {"caught_up": True} in events)
    store.close()
    assert store.files()["attempt-1/rank-0.log"] == (9900, 10_000)
    assert (tmp_path / "mirror/attempt-1/rank-0.log").read_bytes() == b"\0" * 9900 + b"0123456789" * 10
    assert (tmp_path / "mirror/attempt-1/rank-0.metrics.jsonl").read_text() == '{"step": 1}\n' * 1000


def test_returning_viewer_skips_to_the_tail_of_a_grown_log(run: Path, tmp_path: Path) -> None:
    log = new_file(run / "attempt-1" / "rank-0.log", b"a" * 5000)
    for size, start in ((5000, 0), (5090, 0), (20_000, 19_900)):
        with log.open("ab") as file:
            file.write(b"b" * (size - file.tell()))
        store = HostStore(tmp_path / "mirror")
        with following(run, store, tail=100 if size > 5000 else None) as events:
            eventually(lambda events=events: {"caught_up": True} in events)
        store.close()
        assert store.files()["attempt-1/rank-0.log"] == (start, size)
    assert (tmp_path / "mirror/attempt-1/rank-0.log").read_bytes()[19_900:] == b"b" * 100
    assert not list((tmp_path / "mirror/attempt-1").glob("*~*"))


def test_a_viewer_that_is_killed_loses_nothing(run: Path, tmp_path: Path) -> None:
    log = new_file(run / "attempt-1" / "rank-0.log", b"a" * 100_000)
    killed = HostStore(tmp_path / "mirror")
    with following(run, killed) as events:
        eventually(lambda: {"caught_up": True} in events)
    # Never closed, as if by SIGKILL.
    log.write_bytes(log.read_bytes() + b"b" * 10)
    again = HostStore(tmp_path / "mirror")
    with following(run, again) as later:
        eventually(lambda: {"caught_up": True} in later)
    again.close()
    assert [event["start"] for event in later if "name" in event] == [100_000]
    assert (tmp_path / "mirror/attempt-1/rank-0.log").read_bytes() == b"a" * 100_000 + b"b" * 10


def test_flood_of_a_log_delays_neither_records_nor_the_end(run: Path) -> None:
    (run / "events.jsonl").write_text("{}\n")
    (run / "attempt-1" / "rank-0.log").write_bytes(bytes(40 * CHUNK))
    names, order, cancelled = dict[int, str](), list[str](), threading.Event()

    def tell(event: dict[str, Any]) -> None:
        if "file" in event:
            names[event["file"]] = event["name"]
        else:
            order.append(json.dumps(event))

    def send(file: int, generation: int, offset: int, data: bytes) -> None:
        order.append(names[file])
        if order.count("attempt-1/rank-0.log") == 10 and not (run / "exit.json").exists():
            with (run / "events.jsonl").open("a") as events:
                events.write("{}\n")
            (run / "exit.json").write_text('{"state": "finished"}')

    Mirror(str(run), {}, None, tell, send).run(cancelled)
    sent = [name for name in order if "{" not in name]
    assert [sent.index("events.jsonl"), sent.index("events.jsonl", 1), sent.index("exit.json")] == [0, 11, 42]
    assert order.index('{"exit": {"state": "finished"}}') < order.index("exit.json")
    behind = [json.loads(each)["behind"] for each in order if "behind" in each]
    assert behind[0] == 39 * CHUNK and behind[-1] == 0
    assert order[-1] == '{"ended": true}'


def test_cancelled_mirror_does_not_say_that_the_run_has_ended(run: Path) -> None:
    (run / "attempt-1" / "rank-0.log").write_bytes(bytes(4 * CHUNK))
    (run / "exit.json").write_text("{}")
    told, cancelled = list[Any](), threading.Event()
    Mirror(str(run), {}, None, told.append, lambda *piece: cancelled.set()).run(cancelled)
    assert {"ended": True} not in told and {"caught_up": True} not in told


def test_symlink_out_of_the_run_folder_is_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.log").write_text("secret")
    (run / "attempt-1" / "rank-0.log").symlink_to(tmp_path / "secret.log")
    store = HostStore(tmp_path / "mirror")
    with following(run, store) as events:
        eventually(lambda: {"caught_up": True} in events)
    store.close()
    assert not (tmp_path / "mirror/attempt-1/rank-0.log").exists()


@pytest.mark.parametrize("name", ["../evil.log", "/etc/evil.log", "a/b/c.log", "a/../b.log", "x\0.log", ""])
def test_a_host_cannot_make_the_viewer_write_elsewhere(tmp_path: Path, name: str) -> None:
    store = HostStore(tmp_path / "mirror")
    with pytest.raises(ValueError, match="named"):
        store.announce({"file": 0, "name": name, "generation": 0, "start": 0})


def test_mirror_without_its_notes_restarts_without_doubling(run: Path, tmp_path: Path) -> None:
    (run / "events.jsonl").write_text("one\n")
    mirror = tmp_path / "mirror"
    store = HostStore(mirror)
    with following(run, store):
        eventually((mirror / "events.jsonl").exists)
    store.close()
    (mirror / ".mirror.json").write_text(json.dumps({"events.jsonl": [0, 0, 99]}))
    again = HostStore(mirror)
    with following(run, again) as events:
        eventually(lambda: {"caught_up": True} in events)
    again.close()
    assert (mirror / "events.jsonl").read_text() == "one\n"


def test_removed_run_folder_is_reported_as_gone(run: Path, tmp_path: Path) -> None:
    (run / "spec.json").write_text("{}")
    with following(run, HostStore(tmp_path / "mirror")) as events:
        eventually(lambda: {"caught_up": True} in events)
        shutil.rmtree(run)
        # A process that still writes may have made part of it anew.
        (run / "attempt-1").mkdir(parents=True)
        eventually(lambda: events[-1] == {"gone": True})
    with following(tmp_path / "never", HostStore(tmp_path / "other")) as events:
        eventually(lambda: events[-1:] == [{"gone": True}])


def test_each_mirror_write_error_has_its_own_cure(tmp_path: Path) -> None:
    store = HostStore(tmp_path / "mirror")
    for file, name in enumerate(("full.log", "folder.log")):
        store.announce({"file": file, "name": name, "generation": 1, "start": 0})
    (tmp_path / "mirror" / "folder.log").mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, before[1]))
    try:
        with pytest.raises(DisttuiError, match="Free space for the run's logs, and attach"):
            store.write(0, 0, b"line")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(DisttuiError, match="Make the folder writable"):
        store.write(1, 0, b"line")


def test_oddly_named_files_do_not_break_the_mirror(tmp_path: Path) -> None:
    """The viewer accepts only known file names; a host that announces another one is not trusted."""
    (tmp_path / "attempt-1").mkdir()
    for name in ("\x1b[2J.log", os.fsdecode(b"\xff.jsonl"), "a\nb.json", ".hidden.log", "x" * 200 + ".log"):
        (tmp_path / "attempt-1" / name).write_text("x")
    new_file(tmp_path / "attempt-\x1b" / "rank-0.log", "x")
    (tmp_path / "attempt-1" / "rank-0.log").write_text("x")
    (tmp_path / "exit.json").write_text("{}")
    seen: list[dict[str, Any]] = []
    Mirror(str(tmp_path), {}, None, seen.append, lambda *_: None).run(threading.Event())
    assert sorted(event["name"] for event in seen if "name" in event) == ["attempt-1/rank-0.log", "exit.json"]


def test_folder_of_root_is_an_error_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an error in the host's data, it was a broken link: `attach` and `wait` reconnected for ever."""

    def refuse(*_: object, **__: object) -> os.stat_result:
        raise PermissionError

    store = HostStore(tmp_path / "0")
    monkeypatch.setattr(os, "lstat", refuse)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(DisttuiError, match=r"0/events\.jsonl: Permission denied") as caught:
        store.announce({"file": 1, "name": "events.jsonl", "generation": 0, "start": 0})
    assert not isinstance(caught.value, PathError)
