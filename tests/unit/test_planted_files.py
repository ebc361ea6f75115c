"""What a job has put in place of its run's files on a host: no question about the run waits, raises or hits others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node import journal, procs
from disttui.runner.node.observe.stacks import collect
from disttui.runner.node.problem import Problem
from disttui.runner.node.rank import mpi_world
from disttui.runner.node.rank.launcher import tell_end
from disttui.runner.node.serve import listing, reading, runs
from disttui.runner.node.serve.mirror import Mirror
from disttui.runner.node.supervise.warden import conclude
from disttui.runner.protocol.regular import open_regular, regular
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.usefixtures("patience")

RUN = "planted-1a2b"
FILES = (
    "spec.json", "supervisor.json", "exit.json", "stop", "events.jsonl", "telemetry.jsonl", "untagged.json",
    "attempt-1/ranks.jsonl", "attempt-1/rank-0.metrics.jsonl", "attempt-1/rank-0.log", "attempt-1/launcher.log",
    "slurm.json", ".locks",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    [], {}, 5, "x", None, {"pid": []}, {"pid": 1}, {"pid": -1}, {"pid": 10**400}, {"pid": True, "warden": 7},
    {"pid": 1, "warden": {"pid": "x"}, "gang": 3, "control": "\0\0"}, {"pid": 1, "control": ["x"]},
    {"pid": 1, "control": "x" * 5000},
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run's only host, whose supervisor is gone."""
    (tmp_path / RUN).mkdir(0o700)
    folder = tmp_path / RUN / "0"
    folder.mkdir(0o700)
    (folder / "attempt-1").mkdir(0o700)
    spec = {"disttui": 1, "run": RUN, "node_rank": 0, "hosts": ["n1"], "nproc": [1], "profile": {"name": "planted"}}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "events.jsonl").write_text(json.dumps({"t": 1.0, "e": "attempt", "attempt": 1}) + "\n")
    (folder / "attempt-1/ranks.jsonl").write_text("")
    return folder


def ask(folder: Path) -> list[dict[str, object]]:
    """Everything that a viewer asks of a run on a host; the answer of `list`."""
    rows = listing.list_runs(str(folder.parents[1]), None)
    over = threading.Event()

    def tell(record: dict[str, object]) -> None:
        if "caught_up" in record:
            over.set()

    Mirror(str(folder), {}, None, tell, lambda *piece: None).run(over)
    for question in (
        lambda: runs.status(str(folder)),
        lambda: runs.request_stop(str(folder), False, "why"),
        lambda: runs.request_stop(str(folder), True, "why"),
        lambda: runs.move(str(folder), 0, 1.0),
        lambda: reading.files(str(folder.parent), reading.outputs_of(str(folder))),
        lambda: collect(str(folder)),
    ):
        try:
            question()
        except Problem:
            pass
    return rows


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_pipe_or_folder_in_place_of_a_host_file_does_not_block(
    plant: Callable[[Path], None], folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other-1a2b" / "0"
    other.mkdir(parents=True)
    (other / "spec.json").write_text(json.dumps({"run": "other-1a2b", "node_rank": 0}))
    for name in FILES:
        path = folder / name
        if path.exists() and not path.is_dir():
            path.unlink()
        if not path.exists():
            plant(path)
        assert any(row["run"] == "other-1a2b" for row in ask(folder)), name


@pytest.mark.parametrize("name", ["supervisor.json", "spec.json", "exit.json", "stop", "untagged.json"])
def test_odd_content_of_a_state_file_causes_no_traceback(name: str, folder: Path) -> None:
    for data in (*(json.dumps(odd).encode() for odd in ODD), b"", b"\0" * 100, b"[" * 100_000, b'{"pid":'):
        (folder / name).write_bytes(data)
        ask(folder)


def test_folders_named_by_odd_digits_hide_no_run_nor_its_end(folder: Path) -> None:
    """`²` is a digit, and no number: a job makes such folders beside those of its run's hosts and attempts."""
    journal.write_json(str(folder / "supervisor.json"), {"pid": 1 << 22, "start": 1, "boot_id": "x"})
    (folder.parent / "²").mkdir()
    (folder / "attempt-²").mkdir()
    assert [row["run"] for row in ask(folder)] == [RUN]
    conclude(str(folder), "the supervisor was killed", None)
    assert journal.read_object(str(folder / "exit.json"))["attempt"] == 1


def test_spec_naming_another_run_does_not_end_its_processes(folder: Path) -> None:
    """The supervisor and warden of a run are killed, and its spec names another run of the same user."""
    tag = {procs.TAG: "neighbour-1a2b/0/1", "DISTTUI_DIR": f"{folder.parents[1]}/neighbour-1a2b/0/attempt-1"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env={**os.environ, **tag}) as other:
        wait_for(lambda: procs.tag(other.pid), "its environment")
        journal.write_json(str(folder / "spec.json"), {"run": "neighbour-1a2b", "node_rank": 0})
        conclude(str(folder), "the supervisor was killed", None)
        assert other.poll() is None
        other.kill()
    assert json.loads((folder / "exit.json").read_text())["cause"]["node"] == 0


def test_report_naming_another_process_does_not_end_it(folder: Path) -> None:
    script = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(3)); print(1, flush=True)"
    with subprocess.Popen([sys.executable, "-c", f"{script}; time.sleep(300)"], stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline()
        who = procs.read(other.pid)
        assert who
        forged = {"e": "start", "rank": 0, "pid": who.pid, "start_time": who.start, "signal": int(signal.SIGTERM)}
        (folder / "attempt-1/ranks.jsonl").write_text(json.dumps(forged) + "\n")
        (folder / "attempt-1/rank-0.stacks").write_text("")
        assert "note" in collect(str(folder))["0"]
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("plant", [os.mkfifo, Path.touch], ids=["pipe", "left"])
def test_planted_file_does_not_block_writing_a_state_file(plant: Callable[[Path], None], folder: Path) -> None:
    """A job knows the process id of its supervisor, and so the name that a file has until it is whole."""
    plant(folder / f"supervisor.json.{os.getpid()}")
    journal.write_json(str(folder / "supervisor.json"), {"pid": 1})
    assert journal.read_json(str(folder / "supervisor.json")) == {"pid": 1}
    assert [path.name for path in folder.glob("supervisor.json*")] == ["supervisor.json"]


@pytest.mark.parametrize("name", ["exit.room", "exit.json"])
@pytest.mark.parametrize("how", ["pipe", "folder", "full folder", "link", "device"])
def test_exit_json_is_written_whatever_is_in_its_place(name: str, how: str, folder: Path) -> None:
    """The supervisor would wait for ever, as for a full disk, and every viewer with it."""
    journal.prepare_exit(str(folder))
    path, other = folder / name, folder.parent.parent / "other"
    other.write_text("of the user")
    path.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(path)
    elif "folder" in how:
        path.mkdir()
        if how == "full folder":
            (path / "x").touch()
    else:
        path.symlink_to(other if how == "link" else "/dev/full")
    journal.write_exit(str(folder), {"state": "finished", "code": 0, "cause": None, "attempt": 1, "left": []})
    assert journal.read_object(str(folder / "exit.json"))["state"] == "finished"
    assert other.read_text() == "of the user" and not (folder / "exit.room").exists()


def test_unwritable_state_file_is_an_error(folder: Path) -> None:
    (folder / f"supervisor.json.{os.getpid()}").mkdir()
    with pytest.raises(OSError):
        journal.write_json(str(folder / "supervisor.json"), {"pid": 1})


@pytest.mark.parametrize("name", [mpi_world.DAEMON, f"launcher.json.{os.getpid()}"], ids=["daemon", "end"])
def test_a_pipe_among_the_files_of_a_launcher_is_not_waited_for(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTTUI_DIR", str(folder))
    os.mkfifo(folder / name)
    assert mpi_world.asked() is None
    tell_end(code=0)
    assert journal.read_object(str(folder / "launcher.json"))["code"] == 0


def test_a_daemons_command_that_is_no_text_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTTUI_DIR", str(folder))
    (folder / mpi_world.DAEMON).write_bytes(b"-mca\norte_hnp_uri\n\xff\n" + b"x" * (2 << 20))
    given = mpi_world.asked()
    assert given is not None
    assert mpi_world.wrong_field(mpi_world.place_of("4.1", given))


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"text" and not os.get_inheritable(file.fileno())
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    before = _open_files()
    for path in (tmp_path, tmp_path / "pipe", Path(os.devnull), tmp_path / "none"):
        for flags in (os.O_RDONLY, os.O_WRONLY):
            with pytest.raises(OSError):
                regular(path, flags)
    assert _open_files() == before
    os.close(reader)


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0
