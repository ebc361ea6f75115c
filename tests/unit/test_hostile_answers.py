"""Hosts that answer anything: each costs its own answer and a sentence with its name, and the others are shown."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disttui.runner.api import diagnosing, ending, listing, orphan_search, probing, pulling
from disttui.runner.api import viewer as viewer_module
from disttui.runner.api.finding import adopt
from disttui.runner.cli.ending import render_orphans
from disttui.runner.cli.render.runs import render_runs
from disttui.runner.cli.show import pulled_lines
from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.formatting import amount, clock, count, duration, gibibytes, number, when
from disttui.runner.hosts import link as link_module
from disttui.runner.hosts import survey
from disttui.runner.hosts.answers import read_answer
from disttui.runner.hosts.facts import facts_of
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.load import load_of
from disttui.runner.node.observe.patterns import recognise
from disttui.runner.profile.load import parse
from disttui.runner.protocol.frames import Unpacker
from disttui.runner.protocol.summary import summarize
from disttui.runner.render.diagnosis import diagnosis_data, diagnosis_text
from disttui.runner.render.probe import render_probe
from disttui.runner.render.stopping import old_table, stopped_lines
from disttui.runner.runs import remote
from disttui.runner.runs import store as store_module
from disttui.runner.runs.follow import HostMirror, Notice
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.runs.store import HostStore
from disttui.runner.runs.summary import Summary, summaries
from disttui.runner.untrusted.records import _MOST_PIECES, LONGEST, Unfinished, json_object, message
from tests.unit.liar_kit import connector, liar, lied, viewer
from tests.unit.planning import FOLDER

KEYS = (
    *Summary.__annotations__, "runs", "files", "mtime", "found", "pid", "ports", "age", "exit", "t", "left", "held",
    "cause", "port", "gpu_memory", "stopped", "ranks", "0", "threads", "frames", "recorder", "kind", "gang", "bytes",
)  # fmt: skip
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["running", "\x1b[2J", "a", "lied-1a2b", "../x", "\ud800", 1 << 63, 1e308, -1]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=12,
)  # fmt: skip


class _Wire:
    """A host in memory: a connection whose one command answers every request at once."""

    def __init__(self, answers: Callable[[dict[str, Any]], Any]) -> None:
        self.name = "n1"
        self._answers = answers
        self._out: Queue[bytes] = Queue()
        self._frames = Unpacker()
        self._begun = b""

    def run(self, command: str) -> _Wire:
        return self

    def read(self, size: int, timeout: float | None = None) -> bytes:
        try:
            return self._out.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None

    def write(self, data: bytes) -> None:
        if not self._begun:
            self._begun = data
            marker = json.loads(data.split(b"\n")[1])["marker"]
            self._out.put(f'\n{marker} {{"python": "3.11", "missing": []}}\n'.encode())
            return
        for frame in self._frames.feed(data):
            if isinstance(frame, dict) and "op" in frame:
                self._out.put(b"J" + struct.pack(">I", len(said := _said(frame["id"], self._answers(frame)))) + said)

    def errors(self) -> str:
        return ""

    def exit_status(self) -> int | None:
        return None

    def kill(self, word: str) -> None:
        """Nothing runs."""

    def close(self) -> None:
        self._out.put(b"")


def _said(number: int, answer: Any) -> bytes:
    return json.dumps({"id": number, "ok": answer}).encode()


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[dict[str, Any]], Any]], None]]:
    """Lets every host answer as given."""

    def use(answers: Callable[[dict[str, Any]], Any]) -> None:
        def opened(host: Any, _: Any, **more: Any) -> Link:
            return Link(_Wire(answers), host.name)

        for module in (remote, survey, viewer_module):
            monkeypatch.setattr(module, "open_link", opened)

    yield use


def _known(folder: Path) -> KnownRun:
    return lied(folder, KnownHost("n1", "local"))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=ANY)
def test_whatever_a_host_answers_a_command_has_an_end(
    answer: Any, tmp_path: Path, wired: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each either returns or raises a DisttuiError, and shows no escape sequence."""
    wired(lambda request: answer)
    run = _known(tmp_path)
    said: list[str] = []
    here = viewer(tmp_path)
    say: Any = lambda news: said.append(str(news))  # noqa: E731
    commands: list[Callable[[], Any]] = [
        lambda: render_runs(listing.list_runs(here, ["local"], run_dir="~/x").rows),
        lambda: render_probe(probing.probe(here, ["local"])),
        lambda: render_orphans(orphan_search.orphans(here, ["local"]).found, end=False),
        lambda: render_orphans(orphan_search.orphans(here, ["local"], end=True).found, end=True),
        lambda: pulled_lines(run, pulling.pull(here, run, tmp_path / "to", say), tmp_path),
        lambda: old_table(ending.old_runs(here, older=0.0).runs),
        lambda: adopt(viewer(tmp_path / "x"), "lied-1a2b", "local"),
        lambda: diagnosis_text(diagnosing.diagnose(here, run, diagnosis_text)),
        lambda: json.dumps(diagnosis_data(diagnosing.diagnose(here, run))),
        lambda: stopped_lines(ending.stop(here, run, tell=say)),
        lambda: ending.forget(here, run),
    ]
    monkeypatch.setattr(diagnosing, "_BETWEEN", 0.0)
    monkeypatch.setattr(ending, "PATIENCE", -1e6)
    for command in commands:
        try:
            seen = command()
        except DisttuiError as error:
            seen = str(error)
        assert "\x1b" not in str(seen).replace("\\x1b", "") and "\x1b" not in "".join(said), (seen, said)


@settings(max_examples=400, deadline=None)
@given(answer=ANY, op=st.sampled_from(["start", "stop", "status", "stacks", "complete", "list"]))
def test_whatever_a_host_answers_is_read_or_refused(answer: Any, op: str) -> None:
    try:
        read_answer(op, answer)
    except ValueError:
        pass
    seen = summaries(answer if op == "list" else {"runs": answer})
    assert "\x1b" not in render_runs([{**one} for one in seen])
    load_of(answer if isinstance(answer, dict) else {"t": 1.0, "gpus": answer, "processes": answer})
    for show in (number, duration, count, gibibytes, when, clock):
        show(answer)
    if isinstance(number(answer), float) and isinstance(answer, int):
        amount(answer, "rank")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_a_host_tells_of_itself_is_read_or_refused(data: st.DataObject) -> None:
    good = json.loads(next(iter(sorted(FOLDER.glob("*.json")))).read_text())
    place: Any = good
    way: list[tuple[Any, Any]] = []
    while isinstance(place, dict | list) and place and (not way or data.draw(st.booleans())):
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        way.append((place, key))
        place = place[key]
    inner, key = way[-1]
    inner[key] = data.draw(ANY)
    try:
        facts_of("n1", good)
    except HostError as error:
        assert str(error).startswith("n1: malformed answer to the probe")


def test_number_of_330_digits_breaks_neither_ps_nor_home(tmp_path: Path) -> None:
    huge = "9" * 330
    assert all(abs(float(value)) < 1e19 for value in (recognise(f"step 5/{huge} loss: 1.0") or {}).values())
    folder = tmp_path / "0" / "attempt-1"
    folder.mkdir(parents=True)
    (tmp_path / "0" / "spec.json").write_text('{"disttui": 1, "started": 5.0}')
    (tmp_path / "0" / "events.jsonl").write_text('{"t": 1, "e": "launch", "attempt": 1}\n')
    (folder / "rank-0.metrics.jsonl").write_text(f'{{"t": 1, "step": 5}}\n{{"t": 2, "step": 6, "steps": {huge}}}\n')
    seen = summarize(str(tmp_path / "0"), lambda: True)
    assert seen is not None and (seen["step"], seen["steps"]) == (5, None)
    # A host of an older version tells it all the same.
    run = lied(tmp_path, KnownHost("n1", "local"))
    run.note_seen(summaries({"runs": [{"run": run.run, "step": 5, "steps": int(huge), "loss": 10**400}]})[0])
    assert "5" in render_runs([run.summary()]) and "steps" not in run.summary()
    assert "9999" not in render_runs([{"run": "x", "step": int(huge), "steps": int(huge), "loss": int(huge)}])


def test_a_liar_costs_its_own_rows_alone(tmp_path: Path) -> None:
    """What is no message, nests without end or breaks off: the other host's runs are shown, the liar is named."""
    good = 'yield {"ok": {"runs": [{"run": "good-1", "node_rank": 0, "state": "running", "step": 3}]}}'
    lies = {
        "deep": 'yield b"J" + struct.pack(">I", 3_000_000) + b"[" * 3_000_000',
        "no message": 'yield b"J" + struct.pack(">I", 4) + b"null"',
        "no frame": 'yield b"X" * 100',
        "too long": 'yield b"J" + struct.pack(">I", 1 << 31) + b"x" * 100000',
        "number": 'yield {"ok": 7}',
        "ends": "os._exit(0)",
    }
    hosts = [liar(tmp_path, "good", good), *(liar(tmp_path, name, body) for name, body in lies.items())]
    run = lied(tmp_path, *hosts)
    with remote.reach_hosts(dict(enumerate(run.hosts)), connector()) as reached:
        answers = reached.ask("list", run_dir="~/x")
    assert summaries(answers[0])[0]["step"] == 3
    for node, name in enumerate(lies, 1):
        assert isinstance(answers[node], HostError) and str(answers[node]).startswith(f"{name}: "), answers[node]


def test_link_lost_while_probing_is_reconnected_once(tmp_path: Path) -> None:
    facts = repr(json.loads(sorted(FOLDER.glob("*.json"))[0].read_text()))
    body = f"""
    open({str(tmp_path / "tries")!r}, "a").write("x")
    if len(open({str(tmp_path / "tries")!r}).read()) == TRY:
        yield {{"ok": {facts}}}
    os._exit(0)
    """
    for tries, reached in ((2, True), (3, False)):
        (tmp_path / "tries").unlink(missing_ok=True)
        host = liar(tmp_path, "n1", body.replace("TRY", str(tries)))
        text = f"disttui: 1\nname: t\nhosts: [{{host: local, python: {host.python}}}]\njob: {{command: [x]}}\n"
        seen: list[str] = []
        try:
            found = survey.survey(parse(text, "t"), connector(), lambda _, kind, __: seen.append(kind))  # noqa: B023
        except HostError as error:
            assert not reached and "the link broke" in str(error)
            assert seen == ["connecting", "probing"] * 2 + ["failed"]
        else:
            assert reached and seen == ["connecting", "probing"] * 2 + ["ready"]
            found[0].link.close()


def test_pull_says_where_it_looked(tmp_path: Path) -> None:
    run = lied(tmp_path, liar(tmp_path, "n1", 'yield {"ok": {"files": []}}'))
    said = pulled_lines(run, pulling.pull(viewer(), run, tmp_path / "to"), tmp_path / "to")
    assert (
        "searched n1 for checkpoints in ~/.disttui/runs/lied-1a2b/checkpoints" in said[0]
        and "$DISTTUI_CHECKPOINTS" in said[1]
    )


def test_pull_fails_where_a_host_cannot_list_its_files(tmp_path: Path) -> None:
    bad = liar(tmp_path, "n2", 'yield {"error": {"what": "20,001 outputs", "cure": "copy them by hand"}}')
    run = lied(tmp_path, liar(tmp_path, "n1", 'yield {"ok": {"files": []}}'), bad)
    with pytest.raises(HostError, match="n2: 20,001 outputs"):
        pulling.pull(viewer(), run, tmp_path / "to")


def test_announcements_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_FILES", 600)
    store = HostStore(tmp_path / "0")
    event = {"file": 0, "name": "a.log", "generation": 0, "size": 1, "start": 0}
    for wrong in (
        {"start": 1 << 63},
        {"start": 1 << 62},
        {"start": -1},
        {"file": "x"},
        {"generation": 1.5},
        {"start": None},
    ):
        with pytest.raises(ValueError, match=r"announced a\.log with invalid numbers"):
            store.announce({**event, **wrong})
    with pytest.raises(ValueError, match="unannounced"):
        store.write(7, 0, b"x")
    for number_of in range(600):
        store.announce({**event, "file": number_of, "name": f"f{number_of}.log"})
    with pytest.raises(ValueError, match="more than 600 files"):
        store.announce({**event, "name": "one-more.log"})
    store.close()
    assert len(HostStore(tmp_path / "0").files()) == 600


def test_host_announcing_endless_files_loses_its_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MOST_FILES", 600)
    body = """
    for number in range(2000):
        yield {"event": {"file": number, "name": "a.log", "generation": 0, "size": 1, "start": 0}}
    """
    link = viewer().open_link(liar(tmp_path, "n1", body).as_host())
    came: list[Any] = []
    with pytest.raises(HostError, match="n1: the link broke: more than 600 files announced for one run"):
        link.stream("mirror", came.append).result(60)
    assert len(came) == 600


def test_ended_mirrors_do_not_count_against_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a job of Slurm, whose parts share the link to the login node."""
    monkeypatch.setattr(link_module, "MOST_FILES", 600)
    body = """
    for number in range(400):
        yield {"event": {"file": request["from"] + number, "name": "a", "generation": 0, "size": 1, "start": 0}}
    yield {"ok": {}}
    """
    link = viewer().open_link(liar(tmp_path, "n1", body).as_host())
    for start in (0, 400, 800):
        came: list[Any] = []
        link.stream("mirror", came.append, **{"from": start}).result(60)
        assert len(came) == 400
    link.close()


def test_a_file_that_begins_anew_without_end_leaves_100_copies(tmp_path: Path) -> None:
    news: Queue[Any] = Queue()
    store = HostStore(tmp_path / "0")
    follower = HostMirror(0, {}, store, lambda: pytest.fail("nobody asked"), news)
    for generation in range(1500):
        follower._take({"file": 0, "name": "a.log", "generation": generation, "size": 1, "start": 0})
        follower._take((0, generation, 0, memoryview(b"x")))
    store.close()
    assert len(list((tmp_path / "0").glob("a.log~*"))) <= 100
    seen = [item for item in news.queue if isinstance(item, Notice)]
    assert [one.text for one in seen] == ["a.log was restarted 100 times: older copies are no longer kept"]


def _view(data: bytes) -> memoryview:
    return memoryview(data)


ANNOUNCED = st.fixed_dictionaries(
    {},
    optional={
        "file": ANY | st.just(0),
        "name": ANY | st.sampled_from(["a.log", "events.jsonl", "exit.json", "attempt-1/b.log"]),
        "generation": ANY | st.integers(0, 3), "start": ANY | st.integers(0, 9), "caught_up": ANY, "ended": ANY,
    },
)  # fmt: skip
PIECE = st.tuples(
    st.integers(0, 2), st.integers(0, 3), st.integers(0, 1 << 64), st.binary(max_size=9).map(_view)
)  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.lists(ANNOUNCED | PIECE | ANY, max_size=6))
def test_whatever_a_host_announces_ends_its_link_at_most(items: list[Any], tmp_path: Path) -> None:
    store = HostStore(tmp_path / "mirror" / "0")
    follower = HostMirror(0, {}, store, lambda: pytest.fail("nobody asked"), Queue())
    for item in items:
        try:
            follower._take(item)
        except (ValueError, OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError):
            continue  # the link's reader ends the link with it
    store.close()
    assert {path.name for path in tmp_path.iterdir()} <= {"mirror"}
    assert {path.name for path in (tmp_path / "mirror").iterdir()} == {"0"}


def test_a_record_without_an_end_is_not_kept() -> None:
    unfinished = Unfinished()
    for offset in range(0, 16 * LONGEST, 64):
        assert not list(unfinished.lines(offset, b"x" * 64))
        assert len(unfinished._held) <= LONGEST
    last = 16 * LONGEST
    assert list(unfinished.lines(last, b'x\n{"a": 1}\n{"b"')) == [(0, None), (last + 2, {"a": 1})]
    assert list(unfinished.lines(last + 15, b": 2}\n")) == [(last + 11, {"b": 2})]
    whole = Unfinished()
    tried = [record for offset in range(300) for _, record in whole.whole_file(offset, b"}")]
    assert not any(tried) and len(tried) == _MOST_PIECES, "each byte that comes is parsed with those before it"


def test_a_nest_without_an_end_is_no_record() -> None:
    deep = b'{"a":' * 70 + b"1" + b"}" * 70
    assert json_object(deep) is None and message(deep) is None
    flat = json.dumps({"a": [[1]] * 500}).encode()
    assert json_object(flat) == message(flat) == {"a": [[1]] * 500}
    assert message(b'{"a": %s, "b": NaN, "c": 1e999, "d": 7}' % (b"9" * 5000)) == {
        "a": None,
        "b": None,
        "c": None,
        "d": 7,
    }
