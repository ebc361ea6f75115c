"""Notifications: what is sent, to receivers that are slow, down, redirect or never end; none is lost or forged."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disttui.runner.node import notify
from disttui.runner.node.journal import Journal
from disttui.runner.node.notify import Notifier, RefusedError, send, sentence, undelivered
from disttui.runner.profile.effects import effect_lines
from disttui.runner.profile.load import parse
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.sections import Notify
from tests.unit.waiting import wait_for

SPEC = {"run": "t-7f3a", "node_rank": 0, "hosts": ["n1", "n2"], "by": "alice@laptop"}
EVENTS = ["started", "ended", "failed", "stalled", "recovered", "alarm"]
FAILED: Any = {
    "t": 5.0, "e": "verdict", "state": "failed", "code": 1, "attempt": 1,
    "cause": {"node": 1, "rank": 3, "kind": "exception", "type": "ValueError", "message": "bad hush-hush\nmore"},
}  # fmt: skip


class Receiver(BaseHTTPRequestHandler):
    heard: list[tuple[Any, Any, bytes]]
    answers: list[Any]
    sent: list[int]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.answers.pop(0) if self.answers else 200
        if callable(answer):
            answer(self)
            return
        self.heard.append((self.path, self.headers, body))
        self.send_response(answer)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    kind = type("Here", (Receiver,), {"heard": [], "answers": [], "sent": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", kind
    server.shutdown()
    server.server_close()


def target(url: str, kind: str = "webhook") -> Any:
    return {"kind": kind, "url": url, "events": EVENTS}


def verdict(state: str = "failed", t: float = 5.0) -> Any:
    return {**FAILED, "t": t} if state == "failed" else {**FAILED, "state": state, "code": 0, "cause": None}


def words(folder: Path) -> list[str]:
    """What became of each notification, as notify.jsonl has it."""
    lines = map(json.loads, (folder / "notify.jsonl").read_text().splitlines())
    return [line["word"].split(":")[0] for line in lines if line["e"] == "to"]


def test_webhook_gets_cause_step_and_command(tmp_path: Path, receiver: tuple[str, type[Receiver]]) -> None:
    url, kind = receiver
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "attempt-1/rank-0.metrics.jsonl").write_text('{"t": 1.0, "step": 41, "loss": 2.5}\n')
    notices = Notifier(str(tmp_path), SPEC, [target(url)], ["hush-hush", "x"])
    notices.see(FAILED)
    [(path, headers, body)] = wait_for(lambda: kind.heard)
    sent = json.loads(body)
    assert (path, sent["id"], headers["Idempotency-Key"]) == ("/hook", "t-7f3a:failed:1", "t-7f3a:failed:1")
    assert (sent["event"], sent["step"], sent["loss"]) == ("failed", 41, 2.5)
    assert sent["cause"] == "rank 3 on n2: ValueError: bad ***"
    assert sent["look"] == "disttui diagnose t-7f3a"
    notices.close()
    assert words(tmp_path) == ["sent"] and undelivered(str(tmp_path), target(url)) == []


def test_each_event_has_one_id_and_is_sent_once(tmp_path: Path, receiver: tuple[str, type[Receiver]]) -> None:
    url, kind = receiver
    notices = Notifier(str(tmp_path), {**SPEC, "queue": {"round": 0}}, [target(url)])
    attempt: Any = {"t": 1.0, "e": "attempt", "attempt": 1, "master": "a", "port": 1, "world_size": 2}
    stall: Any = {"t": 3.0, "e": "stall", "attempt": 2, "silent": {"0": 30.0, "1": 31.0}}
    alarm: Any = {"t": 3.5, "e": "alarm", "kind": "disk", "text": "the disk is full"}
    events: Any = (
        attempt, {"t": 2.0, "e": "failed", "attempt": 1, "cause": None}, {**attempt, "attempt": 2}, stall,
        {**stall, "t": 4.0, "over": True}, alarm, {**alarm, "over": True}, {**alarm, "t": 9.0}, verdict("finished"),
    )  # fmt: skip
    for event in events:
        notices.see(event)
    wait_for(lambda: len(kind.heard) == 6)
    notices.close()
    sent = [json.loads(body) for _, _, body in kind.heard]
    assert [one["event"] for one in sent] == ["started", "failed", "stalled", "recovered", "alarm", "ended"]
    assert len({one["id"] for one in sent}) == 6
    assert sent[2]["text"] == "no rank has shown progress for 30 s"


def test_alarms_of_one_second_have_different_ids(tmp_path: Path, receiver: tuple[str, type[Receiver]]) -> None:
    """A receiver took the second for the first one again: by the same id."""
    url, kind = receiver
    alarms: Any = [{"t": 3.5, "e": "alarm", "kind": name, "text": f"the {name} is full"} for name in ("disk", "memory")]
    hosts = []
    for node in (0, 1):
        (tmp_path / str(node)).mkdir()
        hosts.append(Notifier(str(tmp_path / str(node)), {**SPEC, "node_rank": node}, [target(url)]))
        for alarm in alarms:
            hosts[-1].see(alarm)
    wait_for(lambda: len(kind.heard) == 4)
    for notices in hosts:
        notices.close()
    assert len({json.loads(body)["id"] for _, _, body in kind.heard}) == 4


def test_follower_reports_its_alarms_alone(tmp_path: Path, receiver: tuple[str, type[Receiver]]) -> None:
    url, kind = receiver
    notices = Notifier(str(tmp_path), {**SPEC, "node_rank": 1}, [target(url)])
    notices.see(FAILED)
    notices.see({"t": 3.5, "e": "alarm", "kind": "disk", "text": "the disk is full"})
    wait_for(lambda: kind.heard)
    notices.close()
    [(_, _, body)] = kind.heard
    assert json.loads(body)["text"] == "n2: the disk is full"


def test_receiver_that_fails_is_tried_again_with_the_same_id(
    tmp_path: Path, receiver: tuple[str, type[Receiver]]
) -> None:
    url, kind = receiver
    kind.answers = [500, 503]
    notices = Notifier(str(tmp_path), SPEC, [target(url)])
    notices.see(verdict(t=time.time()))
    wait_for(lambda: len(kind.heard) == 3)
    wait_for(lambda: words(tmp_path) == ["trying", "sent"])
    assert len({json.loads(body)["id"] for _, _, body in kind.heard}) == 1


def test_next_process_continues_where_the_supervisor_ended(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    there = target(f"http://127.0.0.1:{port}/hook")
    notices = Notifier(str(tmp_path), SPEC, [there])
    notices.see(verdict(t=time.time()))
    wait_for(lambda: words(tmp_path) == ["trying"])
    notices.close()
    assert [one["id"] for one in undelivered(str(tmp_path), there)] == ["t-7f3a:failed:1"]
    other: Any = {**there, "events": ["finished"]}
    assert undelivered(str(tmp_path), other) == [], "not what a target does not want"
    kind: Any = type("Here", (Receiver,), {"heard": [], "answers": [], "sent": []})
    server = ThreadingHTTPServer(("127.0.0.1", port), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    (tmp_path / "exit.json").write_text(json.dumps({"state": "failed", "attempt": 1}))
    notify.continue_after(str(tmp_path), [there], "")
    assert [json.loads(body)["id"] for _, _, body in kind.heard] == ["t-7f3a:failed:1"]
    notify.continue_after(str(tmp_path), [there], "")
    assert len(kind.heard) == 1
    server.shutdown()
    server.server_close()


def test_supervisor_that_was_killed_is_reported(tmp_path: Path, receiver: tuple[str, type[Receiver]]) -> None:
    url, kind = receiver
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    (tmp_path / "exit.json").write_text(json.dumps({"state": "failed", "attempt": 2}))
    notify.continue_after(str(tmp_path), [target(url)], "the supervisor was killed by signal 9")
    [(_, _, body)] = kind.heard
    assert json.loads(body)["cause"] == "n1: the supervisor was killed by signal 9"
    (tmp_path / "spec.json").write_text("[]")
    notify.continue_after(str(tmp_path), [target(url)], "whatever the job has written there")


class Killed(SystemExit):
    """The process that sends was killed: its threads end silently."""


class Life:
    """A process that sends. It is killed after so many writes and messages."""

    def __init__(self, steps: float) -> None:
        self._left = steps
        self._lock = threading.Lock()
        self.notifiers: list[Notifier] = []

    def step(self, steps: int = 1) -> None:
        with self._lock:
            self._left -= steps
            if self._left < 0:
                raise Killed

    def lead(self, work: Callable[[], object]) -> bool:
        """Work until it is done, or killed; returns whether it is done."""
        try:
            work()
            self.step(0)  # a thread may have been killed
        except Killed:
            pass
        for _, courier in (pair for one in self.notifiers for pair in one._targets):
            courier.close()
            courier._thread.join(60)
            assert not courier._thread.is_alive()
        for one in self.notifiers:
            if one._file._fd is not None:
                os.close(one._file._fd)
        return self._left >= 0


class Simulation:
    """A host whose sender is killed and started again, and whose network is cut, by the dice of a seed."""

    def __init__(self, seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.seed, self.folder, self.dice = seed, folder, random.Random(seed)
        self.targets = [target("http://x", kind) for kind in ("webhook", "ntfy")[: self.dice.randint(1, 2)]]
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.life, self._tries = Life(0), Counter[str]()
        simulation = self

        class Written(Journal):
            def add(self, record: Any) -> None:
                simulation.life.step()
                super().add(record)
                simulation.life.step()

        class Known(Notifier):
            def __init__(self, *given: Any) -> None:
                simulation.life.notifiers.append(self)
                super().__init__(*given)

        def sleep(_: float) -> None:
            time.sleep(0.001)
            simulation.life.step(0)

        quick = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=sleep)
        for name, value in (
            ("Journal", Written), ("Notifier", Known), ("send", self.send), ("_SLOWEST", 0.0), ("time", quick),
        ):  # fmt: skip
            patch.setattr(notify, name, value)

    def send(self, place: Any, notice: dict[str, Any]) -> None:
        self.life.step()
        key = f"{self.seed}:{place['kind']}:{notice['id']}"
        self._tries[key] += 1
        fate = random.Random(f"{key}:{self._tries[key]}").random()
        if fate < 0.3:
            raise OSError("the network is cut")
        self.heard.append((place["kind"], notice))
        self.life.step()
        if fate < 0.5:
            raise ConnectionResetError("its answer is lost")

    def story(self) -> Iterator[tuple[Any, str]]:
        """Events of a run, and the kind of the notification that each of them needs, empty: none."""
        dice, t = self.dice, time.time()
        kinds = ["disk", "swap", "gpu memory", "memory"]
        yield {"t": t, "e": "attempt", "attempt": 1, "master": "a", "port": 1, "world_size": 2}, "started"
        for attempt in range(1, dice.randint(2, 4)):
            for number in range(dice.randint(0, 3)):
                t += 0.5
                if kinds and dice.random() < 0.5:
                    alarm = {"t": t, "e": "alarm", "kind": kinds.pop(), "text": f"alarm {t}"}
                    yield alarm, "alarm"
                    yield {**alarm, "over": True}, ""
                    yield {**alarm, "t": t + 0.1}, ""
                else:
                    stall = {"t": t, "e": "stall", "attempt": attempt, "silent": {"0": 30.0 + number}}
                    yield stall, "stalled"
                    yield {**stall, "t": t + 0.2, "over": True}, "recovered"
            t += 1
            yield {"t": t, "e": "failed", "attempt": attempt, "cause": FAILED["cause"]}, "failed"
            if dice.random() < 0.8:
                begun = {"t": t, "e": "attempt", "attempt": attempt + 1, "master": "a", "port": 1, "world_size": 2}
                yield begun, ""
            else:
                break  # the attempt that should follow never begins
        end = dice.choice(("finished", "failed", "stopped"))
        yield {**verdict(end), "t": t + 1, "attempt": attempt}, "failed" if end == "failed" else "ended"

    def run(self) -> None:
        happened: list[str] = []
        certain: list[str] = []

        def supervise() -> None:
            notices = notify.Notifier(str(self.folder), {**SPEC, "queue": {"round": 0}}, self.targets)
            for event, kind in self.story():
                before = len(happened)
                happened.extend([kind] * bool(kind))
                notices.see(event)
                certain.extend(happened[before:])
            notices.close()

        (self.folder / "spec.json").write_text(json.dumps(SPEC))
        self.life = Life(self.dice.choice((self.dice.randint(0, 60), math.inf)))
        why = "" if self.life.lead(supervise) else "the supervisor was killed by signal 9"
        (self.folder / "exit.json").write_text(json.dumps({"state": "failed", "attempt": 1}))
        if why:
            happened.append("failed")
            certain.append("failed")
        lives = [float(self.dice.randint(0, 30)) for _ in range(self.dice.randint(0, 4))]
        for steps in (*lives, math.inf):
            self.life = Life(steps)
            if self.life.lead(lambda: notify.continue_after(str(self.folder), self.targets, why)):
                break
        self.judge(happened, certain, bool(why))

    def judge(self, happened: list[str], certain: list[str], lost: bool) -> None:
        for place in self.targets:
            heard = {one["id"]: one["event"] for kind, one in self.heard if kind == place["kind"]}
            sent, last = Counter(heard.values()), f"{SPEC['run']}:failed:1"
            # Where the supervisor is killed after its verdict, the end of the run is told twice, by one id.
            again = lost and "failed" in certain and last in heard and sent["failed"] == certain.count("failed") - 1
            sent["failed"] += again
            assert not Counter(certain) - sent, (self.seed, "lost", place["kind"], certain, heard)
            assert not sent - Counter(happened), (self.seed, "invented", place["kind"], happened, heard)
        texts: dict[tuple[Any, ...], set[str]] = {}
        for _, one in self.heard:
            texts.setdefault((one["event"], one["t"], one["text"], one["attempt"]), set()).add(one["id"])
        assert all(len(ids) == 1 for event, ids in texts.items()), (self.seed, texts)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_event_is_lost_repeated_by_another_id_or_invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 runs, whose senders are killed between any two writes and messages, and whose network is cut."""
    repeated = 0
    for seed in range(500):
        folder = tmp_path / str(seed)
        folder.mkdir()
        simulation = Simulation(seed, folder, monkeypatch)
        simulation.run()
        repeated += len(simulation.heard) > len({(kind, one["id"]) for kind, one in simulation.heard})
    assert repeated > 100, "the dice must have repeated something"


def test_redirects_and_refusals_are_not_followed(receiver: tuple[str, type[Receiver]]) -> None:
    url, kind = receiver
    kind.answers = [302, 307, 404]
    for why in ("redirects are not followed (302)", "(307)", "404"):
        with pytest.raises(RefusedError) as caught:
            send(target(url), NOTICE)
        assert why in str(caught.value)
    assert len(kind.heard) == 3


def endless_body(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"x" * (1 << 16))
            handler.sent.append(1 << 16)
    except OSError:
        handler.sent.append(0)


def slow_headers(handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    with suppress(OSError):
        for number in range(600):
            handler.wfile.write(b"X-%d: y\r\n" % number)
            time.sleep(0.2)


def test_endless_answer_is_not_read(monkeypatch: pytest.MonkeyPatch, receiver: tuple[str, type[Receiver]]) -> None:
    monkeypatch.setattr(notify, "LIMIT", 3600.0)
    url, kind = receiver
    kind.answers = [endless_body]
    send(target(url), NOTICE)
    wait_for(lambda: kind.sent and kind.sent[-1] == 0, "the end of the connection")
    assert sum(kind.sent) < 64 << 20, "no more than fits into the buffers of two sockets"


def test_slow_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch, receiver: tuple[str, type[Receiver]]) -> None:
    monkeypatch.setattr(notify, "LIMIT", 2.0)
    url, kind = receiver
    kind.answers = [slow_headers]
    with suppress(ConnectionResetError):  # a byte that arrives after the cut resets it: then it is sent again by its id
        send(target(url), NOTICE)  # it said 200 before; the 101st header, after 20 s, would be an error


NOTICE = {"by": None, "steps": None, "id": "i:1", "t": 1.0, "event": "failed", "run": "t-7f3a", "hosts": ["n1", "n2"],
          "text": "the run <b> failed", "cause": "rank 1 on n2: boom & bust", "step": 41, "loss": 2.25, "attempt": 1,
          "look": "disttui diagnose t-7f3a"}  # fmt: skip


def test_chats_get_a_text_that_mentions_nobody(receiver: tuple[str, type[Receiver]]) -> None:
    url, kind = receiver
    for one in ("slack", "discord", "ntfy"):
        send(target(url, one), NOTICE)
    slack, discord, ntfy = (body.decode() for _, _, body in kind.heard)
    assert json.loads(slack)["text"].startswith(
        "t-7f3a: the run &lt;b&gt; failed\ncause: rank 1 on n2: boom &amp; bust"
    )
    assert json.loads(discord)["allowed_mentions"] == {"parse": []}
    assert ntfy == sentence(NOTICE) and ntfy.endswith("on n1, n2, step 41, loss 2.25\ndisttui diagnose t-7f3a")
    assert kind.heard[2][1]["Title"] == "t-7f3a: failed"


def test_mail_is_sent_by_smtp() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    got: list[str] = []

    def serve() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rw", newline="\r\n") as file:

            def say(line: str) -> None:
                file.write(line + "\r\n")
                file.flush()

            say("220 here")
            data = False
            for line in file:
                got.append(line.rstrip())
                if data:
                    if line.rstrip() == ".":
                        data = False
                        say("250 taken")
                    continue
                data = line.startswith("data")
                say("354 go" if data else "250 fine")

    threading.Thread(target=serve, daemon=True).start()
    port = server.getsockname()[1]
    send(target(f"smtp://127.0.0.1:{port}/me@example.org", "email"), NOTICE)
    server.close()
    assert "rcpt to:<me@example.org>" in map(str.lower, got) and "Subject: t-7f3a: failed" in got
    assert any("boom & bust" in line for line in got)


BASE = "disttui: 1\nname: one\nhosts: [a, b]\njob: {builtin: bytegpt}\n"


def test_addresses_are_references_and_the_config_has_a_default() -> None:
    profile = parse(BASE + "notify: {slack: '${env:HOOK}', events: [failed]}\n", "one.yaml")
    default = Notify.model_validate({"slack": "https://other.example", "ntfy": "https://ntfy.example/t"})
    found = profile.resolved_notify(default, lambda reference: f"https://hooks.example/{reference.name}")
    assert [(one["kind"], one["url"], one["events"]) for one in found] == [
        ("slack", "https://hooks.example/HOOK", ["failed"]), ("ntfy", "https://ntfy.example/t", ["failed"]),
    ]  # fmt: skip
    with pytest.raises(ProfileErrors, match="not an address"):
        profile.resolved_notify(None, lambda reference: "no address")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{slack: 'ftp://x'}", "expected http://… or https://…"), ("{events: [soon]}", "events"),
        ("{email: 'https://x'}", "expected smtps://"), ("{pager: x}", "unknown key 'pager'"),
    ],
)  # fmt: skip
def test_invalid_notify_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ProfileErrors) as caught:
        parse(f"{BASE}notify: {text}\n", "one.yaml")
    assert said in str(caught.value) and "5:" in str(caught.value)


def test_trust_question_names_where_a_profile_sends() -> None:
    profile = parse(BASE + "notify: {webhook: 'https://evil.example/x?y', slack: '${env:HOOK}'}\n", "one.yaml")
    lines = dict(effect_lines(profile))
    assert lines["notify.webhook"] == "on a, b, on events of the run: https://evil.example/…"
    assert lines["notify.slack"] == "on a, b, on events of the run: ${env:HOOK}"
    assert lines["${env:HOOK}"] == "to a, b, as notify.slack"
