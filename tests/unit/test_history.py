"""What a viewer keeps of runs: found by id, summed up from the mirror, damaged or not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from disttui.runner.api import ending
from disttui.runner.api.ending import StopResult
from disttui.runner.cli.ending import stop
from disttui.runner.cli.render.run_story import render_run
from disttui.runner.cli.render.runs import render_runs
from disttui.runner.errors import InputError
from disttui.runner.ids import pick
from disttui.runner.node.serve import listing
from disttui.runner.protocol.frames import LIMIT, pack_json
from disttui.runner.runs.registry import KnownHost, KnownRun, find_run, known_runs, load_run, mirror_of, profile_of
from disttui.runner.runs.remote import missing
from disttui.runner.runs.replay import replay
from disttui.runner.runs.store import HostStore
from tests.command import ran
from tests.files import new_file
from tests.unit.history_kit import command, environ, kept, lines, mirrored, profile
from tests.unit.runs_kit import Cluster


def test_a_run_is_read_back_as_it_was_kept(tmp_path: Path) -> None:
    made = kept(tmp_path, source="two.yaml", ssh_config=None)
    again = load_run(made.folder)
    assert again == made
    assert [host.as_host().endpoint for host in again.hosts] == [host.endpoint for host in profile().hosts]
    assert profile_of(again).model_dump() == profile().model_dump() and profile_of(again).job.args == ("007",)
    assert "secret" not in (made.folder / "run.json").read_text()
    assert (made.folder / "run.json").stat().st_mode & 0o077 == 0


def test_runs_are_found_by_any_unique_beginning(tmp_path: Path) -> None:
    kept(tmp_path, "two-7f3a")
    kept(tmp_path, "two-7b00")
    assert find_run("two-7f", environ(tmp_path)).run == "two-7f3a"
    with pytest.raises(InputError, match="is ambiguous: two-7b00, two-7f3a"):
        find_run("two", environ(tmp_path))
    with pytest.raises(InputError, match=r"(?s)no run 'two-7f3b' is known here.*two-7f3a") as caught:
        find_run("two-7f3b", environ(tmp_path))
    assert caught.value.exit_code == 2
    with pytest.raises(InputError, match=r"no run '\.\./x'"):
        find_run("../x", environ(tmp_path))
    with pytest.raises(InputError, match=r"(?s)is known on node1\n.*disttui ps --host node1$"):
        pick("x", ["two-7f3a"], "node1")
    for far in ("sweep", "completely-else", "x" * 1000):
        with pytest.raises(InputError) as caught:
            find_run(far, environ(tmp_path))
        assert "two-7" not in str(caught.value) and "disttui ps" in str(caught.value)


def test_what_a_newer_disttui_has_written_is_one_clear_line(tmp_path: Path) -> None:
    made = kept(tmp_path)
    data = json.loads((made.folder / "run.json").read_text())
    (made.folder / "run.json").write_text(json.dumps({**data, "disttui": 2, "hosts": "unheard of"}))
    done = command(tmp_path, "runs", "show", "two")
    assert done.returncode == 2 and "format 2, this one reads 1" in done.stderr and "Traceback" not in done.stderr
    listed = command(tmp_path, "ps", "--local")
    assert listed.returncode == 0 and "format 2" in listed.stderr


@pytest.mark.parametrize("content", ["", "{", "[]", '{"disttui": 1}', "\x00\xff", '{"disttui": 1, "hosts": [3]}'])
def test_a_damaged_run_json_is_one_clear_line(tmp_path: Path, content: str) -> None:
    made = kept(tmp_path)
    (made.folder / "run.json").write_bytes(content.encode("latin-1"))
    runs, problems = known_runs(environ(tmp_path))
    assert not runs and len(problems) == 1 and "run.json" in problems[0]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("", "cannot list the runs in {}: Permission denied"),
        ("two-7f3a", "{}/two-7f3a/run.json: cannot be read: Permission denied"),
        ("two-7f3a/run.json", "{}/two-7f3a/run.json: cannot be read: Permission denied"),
    ],
)
def test_what_may_not_be_read_is_not_left_out(tmp_path: Path, place: str, words: str) -> None:
    """Lists were silently empty where a folder may not be entered; an unreadable file was called damaged."""
    made = kept(tmp_path)
    runs = made.folder.parent
    # Root may read everything until it gives that up: PR_CAPBSET_DROP of CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
    give_up = "import ctypes; [ctypes.CDLL(None).prctl(24, one) for one in (1, 2)]" if os.geteuid() == 0 else ""
    ps = "from disttui.runner.cli import main; main()"
    code = f"import os, sys\n{give_up}\nos.execv(sys.executable, [sys.executable, '-c', {ps!r}, 'ps', '--local'])"
    (runs / place).chmod(0)
    try:
        env = {**os.environ, **environ(tmp_path), "HOME": str(tmp_path)}
        done = ran([sys.executable, "-c", code], env=env)
    finally:
        (runs / place).chmod(0o700)
    assert words.format(runs) in done.stderr and done.returncode == 0, done.stderr


def test_a_run_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    """It was a traceback; so it was on a disk that is mounted read-only."""
    made = kept(tmp_path)
    (made.folder / ".viewer").mkdir()
    for words in (["runs", "show", "--local"], ["diagnose"], ["logs"], ["wait"], ["attach"]):
        done = command(tmp_path, *words, made.run)
        assert done.returncode == 2 and f"cannot write {made.folder / '.viewer'}: " in done.stderr, words
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", ["{", '{"disttui": 2, "hosts": "unheard of"}'])
def test_what_cannot_be_read_can_be_removed_here(tmp_path: Path, content: str) -> None:
    made, good = kept(tmp_path), kept(tmp_path, "two-7b00")
    (made.folder / "run.json").write_text(content)
    assert "disttui runs forget --here two-7f3a" in command(tmp_path, "ps", "--local").stderr
    assert command(tmp_path, "runs", "forget", "two-7f3a").returncode == 2
    assert command(tmp_path, "runs", "forget", "--here", "--host", "x", "two-7f3a").returncode == 2
    done = command(tmp_path, "runs", "forget", "--here", "two-7f")
    assert (done.returncode, done.stdout) == (0, "two-7f3a: local files removed\n"), done.stderr
    assert not made.folder.exists() and good.folder.exists()
    assert command(tmp_path, "ps", "--local").stderr == ""


def test_ctrl_c_after_a_stop_says_that_it_has_gone_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> StopResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(ending._Stop, "take", interrupted)
    cluster = Cluster(tmp_path, [1], "time.sleep(300)")
    data = {"XDG_DATA_HOME": str(tmp_path / "data")}
    try:
        cluster.start().wait_ranks()
        host = KnownHost("here", "local", python=sys.executable)
        folder = tmp_path / "data" / "disttui" / "runs" / cluster.run
        KnownRun(cluster.run, folder, (host,), {}, str(cluster.run_dir(0)), time.time(), "me").save()
        monkeypatch.setattr(os, "environ", {**os.environ, **data})
        done = CliRunner().invoke(stop, [cluster.run])
        assert done.output.splitlines()[0] == "the stop was sent to here and continues without this command"
        assert cluster.exit(0)["state"] == "stopped"
    finally:
        cluster.clean_up()


def test_no_field_of_a_run_json_may_be_anything(tmp_path: Path) -> None:
    made = kept(tmp_path)
    good = json.loads((made.folder / "run.json").read_text())
    for name in set(good) - {"disttui"}:
        for value in (["x"], {"a": 1}, 7 if name not in ("started",) else "7"):
            if isinstance(value, type(good[name])):
                continue
            (made.folder / "run.json").write_text(json.dumps({**good, name: value}))
            assert known_runs(environ(tmp_path))[1], (name, value)
    for name in good["hosts"][0]:
        hosts = [{**good["hosts"][0], name: ["x"]}, good["hosts"][1]]
        (made.folder / "run.json").write_text(json.dumps({**good, "hosts": hosts}))
        assert known_runs(environ(tmp_path))[1], name


def test_damaged_lines_are_skipped_with_file_and_offset(tmp_path: Path) -> None:
    made = kept(tmp_path)
    good = {"t": 10.0, "e": "attempt", "attempt": 1, "master": "m", "port": 1, "world_size": 3}
    body = lines({"t": 9.0, "e": "supervisor", "python": "3.8.1"}).encode()
    torn = (
        body + b'{"t": 9.5, "e": "at\x00\n' + lines(good).encode() + lines({"t": 11, "e": "join"}).encode() + b'{"half'
    )
    mirrored(made, 0, {"events.jsonl": torn, "exit.json": lines({"t": 12, "state": "finished", "code": 0})})
    mirrored(made, 1, {"events.jsonl": lines({"t": 9.0, "e": "supervisor"})})
    found = replay(made, made.folder)
    assert found.state.attempt == 1 and found.state.result is not None
    at = body.index(b"\n") + 1
    assert found.warnings[0] == f"a: events.jsonl at byte {at}: malformed record skipped"
    # A malformed JSON record is counted as well; the unfinished last line is no record yet.
    assert len(found.warnings) == 2
    text = "\n".join(render_run(made, found))
    assert "3 ranks, master" in text and "3.8.1" in text and "finished" in text


def test_a_run_is_summed_up_alike_on_its_host_and_in_the_mirror(tmp_path: Path) -> None:
    made = kept(tmp_path)
    spec = {"disttui": 1, "run": made.run, "node_rank": 0, "hosts": ["a", "b"], "nproc": [1, 2], "by": "x@y",
            "started": 5.0, "profile": {"name": "two"}}  # fmt: skip
    events = lines({"t": 9, "e": "supervisor"}, {"t": 10, "e": "launch", "attempt": 2})
    steps = lines(*({"t": 1.0, "step": n, "steps": 5000, "loss": 1 / (n + 1)} for n in range(4001)))
    files: dict[str, str | bytes] = {"spec.json": json.dumps(spec), "events.jsonl": events,
                                     "attempt-2/rank-0.metrics.jsonl": steps}  # fmt: skip
    mirrored(made, 0, files)
    summary = made.summary()
    assert (summary["state"], summary["attempt"], summary["step"], summary["steps"]) == ("running", 2, 4000, 5000)
    host = listing.list_runs(str(tmp_path / "disttui/runs"), made.run)
    assert [one["state"] for one in host] == ["lost"] and host[0]["step"] == 4000
    mirrored(made, 0, {**files, "exit.json": json.dumps({"t": 20.0, "state": "stopped", "code": 130})})
    assert made.summary()["state"] == "stopped"
    table = render_runs([made.summary()])
    assert "■ stopped" in table and "4,000/5,000" in table


def test_no_record_of_a_short_file_is_missed(tmp_path: Path) -> None:
    """The newest one went where it was written across the end of what is read as the file's beginning."""
    made = kept(tmp_path)
    spec = {"disttui": 1, "run": made.run, "node_rank": 0, "hosts": ["a", "b"], "nproc": [1, 2]}
    events = lines({"t": 10, "e": "launch", "attempt": 1})
    for count in range(150, 250):
        steps = lines(*({"t": 1.0, "step": n} for n in range(count)))
        mirrored(made, 0, {"spec.json": json.dumps(spec), "events.jsonl": events,
                           "attempt-1/rank-0.metrics.jsonl": steps})  # fmt: skip
        assert made.summary()["step"] == count - 1


@pytest.mark.parametrize(("written", "shown"), [("NaN", "nan"), ("-Infinity", "-inf"), ('"nan"', "nan"), ('"?"', "-")])
def test_run_table_shows_a_loss_that_is_not_finite(tmp_path: Path, written: str, shown: str) -> None:
    made = kept(tmp_path)
    spec = {"disttui": 1, "run": made.run, "node_rank": 0, "hosts": ["a", "b"], "nproc": [1, 2]}
    files: dict[str, str | bytes] = {
        "spec.json": json.dumps(spec),
        "events.jsonl": lines({"t": 10, "e": "launch", "attempt": 1}),
        "attempt-1/rank-0.metrics.jsonl": f'{{"t": 1.0, "step": 7, "loss": {written}}}\n',
    }
    mirrored(made, 0, files)
    head, row = render_runs([made.summary()]).splitlines()
    end = head.index("loss") + len("loss")
    assert row[:end].split()[-1] == shown
    [answered] = listing.list_runs(str(tmp_path / "disttui/runs"), made.run)
    made.note_seen({**json.loads(json.dumps(answered)), "step": 8})
    assert made.summary().get("loss") == (None if shown == "-" else shown)


def test_state_of_a_run_without_steps_comes_from_its_mirror(tmp_path: Path) -> None:
    """No host was ever asked about it."""
    made = kept(tmp_path)
    spec = {"disttui": 1, "run": made.run, "node_rank": 0, "hosts": ["a", "b"], "nproc": [1, 2]}
    begun = {"t": 10, "e": "launch", "attempt": 3}, {"t": 11, "e": "rank", "attempt": 3, "rank": 0}
    events = lines({"t": 9, "e": "supervisor"}, *begun)
    mirrored(made, 0, {"spec.json": json.dumps(spec), "events.jsonl": events, "attempt-3/rank-0.log": "epoch 1\n"})
    assert made.summary()["state"] == "starting"
    mirrored(made, 0, {"telemetry.jsonl": lines({"t": 17})})
    summary = made.summary()
    assert (summary["state"], summary["attempt"]) == ("running", 3)


def test_a_sandbox_that_is_gone_is_lost(tmp_path: Path) -> None:
    made = kept(tmp_path, sandbox=True)
    assert made.summary()["state"] == "lost"
    assert command(tmp_path, "stop", made.run).stdout == "two-7f3a is not running: nothing to stop\n"
    assert command(tmp_path, "runs", "forget", made.run).returncode == 0 and not made.folder.exists()


@pytest.mark.root
def test_a_folder_that_may_not_be_read_names_its_owner() -> None:
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o755)
        run = Path(base) / "hers-1"
        new_file(run / "0" / "spec.json", "{}")
        run.chmod(0o700)
        pid = os.fork()
        if pid == 0:
            os.setuid(20001)
            found = listing.list_runs(base, None)
            cure = "it belongs to root; log in as that user, or ask them"
            os._exit(0 if found == [{"run": "hers-1", "problem": f"{run} belongs to root", "cure": cure}] else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_more_runs_than_fit_into_an_answer_leave_out_the_oldest() -> None:
    rows: list[dict[str, object]] = [{"run": f"r-{number}", "hosts": ["n" * 1000] * 64} for number in range(62)]
    some = listing.fitting(rows)
    assert some == rows[: len(some)] and 20 < len(some) < 62 and len(pack_json({"runs": some})) < LIMIT
    assert listing.fitting(rows[:9]) == rows[:9]


def test_a_second_viewer_of_one_machine_has_a_mirror_of_its_own(tmp_path: Path) -> None:
    made = kept(tmp_path)
    with mirror_of(made) as first:
        with mirror_of(made) as second:
            assert first == made.folder and second != first and second.is_dir()
        assert not second.exists()
    with mirror_of(made) as third:
        assert third == made.folder


def test_a_second_viewer_begins_with_what_is_here(tmp_path: Path) -> None:
    """Also where its hosts are gone for good: it may add to a file, and the first viewer may write that anew."""
    made = kept(tmp_path)
    mirrored(made, 0, {"exit.json": "{}", "attempt-1/rank-0.log": "one\n"})
    with mirror_of(made), mirror_of(made) as second:
        first, store = HostStore(made.folder / "0"), HostStore(second / "0")
        assert missing(made, second) == [1] and b"".join(data for _, data in store.read("exit.json")) == b"{}"
        for mirror, generation, start in ((first, 0, 4), (first, 1, 0), (store, 0, 4)):
            mirror.announce({"file": 1, "name": "attempt-1/rank-0.log", "generation": generation, "start": start})
            mirror.write(1, start, b"two\n")
        assert [data for _, data in store.read("attempt-1/rank-0.log")] == [b"one\ntwo\n"]
        assert [data for _, data in first.read("attempt-1/rank-0.log")] == [b"two\n"]


def test_a_gap_in_one_mirror_is_none_in_the_other(tmp_path: Path) -> None:
    made = kept(tmp_path)
    mirrored(made, 0, {"attempt-1/rank-0.log": "one\n"})
    with mirror_of(made), mirror_of(made) as second:
        store = HostStore(second / "0")
        store.announce({"file": 1, "name": "attempt-1/rank-0.log", "generation": 0, "start": 900})
        store.write(1, 900, b"late\n")
        assert HostStore(made.folder / "0").files() == {"attempt-1/rank-0.log": (0, 4)}
        assert store.files() == {"attempt-1/rank-0.log": (900, 905)}


def test_a_deleted_run_is_not_created_again(tmp_path: Path) -> None:
    """Its replay is still open, or another command deleted it in the meantime."""
    made = kept(tmp_path)
    shutil.rmtree(made.folder)
    with pytest.raises(InputError, match="was deleted on this machine"), mirror_of(made):
        pass
    assert not made.folder.exists()


def test_what_a_killed_viewer_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    """Its terminal was closed, or it was killed; the mirror of one that still looks on stays."""
    made = kept(tmp_path)
    with mirror_of(made), mirror_of(made) as second:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            with mirror_of(made) as third:
                os.write(write, os.fsencode(third))
                os.kill(os.getpid(), signal.SIGKILL)
        left = Path(os.fsdecode(os.read(read, 4096)))
        os.waitpid(pid, 0)
        assert left.is_dir()
        with mirror_of(made):
            assert not left.exists() and second.is_dir()
        for end in (read, write):
            os.close(end)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_an_unreadable_run_folder_hides_no_others() -> None:
    with tempfile.TemporaryDirectory() as base:
        for name, mode in (("good", 0o755), ("bad", 0o700)):
            folder = Path(base, "disttui/runs", name)
            new_file(folder / "run.json", "{}")
            folder.chmod(mode)
        Path(base).chmod(0o755)
        code = "import os, sys; from disttui.runner.runs.registry import run_names; os.setuid(65534); "
        code += "print(run_names({'XDG_DATA_HOME': sys.argv[1], 'HOME': '/'}))"
        done = ran([sys.executable, "-c", code, base], check=True)
    assert done.stdout == "['good']\n"
