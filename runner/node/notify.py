"""Sends notifications to the profile's targets; each has an id and is kept on disk until it is delivered.

`notify.jsonl` records each notification before it is sent, and its outcome at each target: the warden continues where
the supervisor stopped, and a repeated notification has the same id.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Sequence

from ..protocol.cause import Cause
from ..protocol.events import Event, stall_text
from ..protocol.regular import read_regular, records
from ..protocol.summary import newest_metrics
from . import journal
from .journal import Journal, stamp

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from ..protocol.files import NotifyTarget

LIMIT = 15.0
"""Seconds that one delivery attempt may take, however slowly the receiver answers."""
GIVE_UP = 900.0
"""Seconds after an event until its notification is given up."""
_SLOWEST = 60.0
"""The longest pause between two attempts, in seconds."""
_LONGEST = 300


class RefusedError(Exception):
    """The receiver will never accept the notification."""


class Courier:
    """Delivers notifications to one target in order, in its own thread."""

    def __init__(self, target: NotifyTarget, done: Callable[[str, str, str], None]) -> None:
        self._target = target
        self._done = done
        self._todo: list[dict[str, Any]] = []
        self._lock = threading.Condition()
        self._closing = False
        self._tries = 0
        self._thread = threading.Thread(target=self._work, name="notify " + target["kind"], daemon=True)
        self._thread.start()

    def add(self, notice: dict[str, Any]) -> None:
        """Queue a notification for delivery."""
        with self._lock:
            self._todo.append(notice)
            self._lock.notify()

    def close(self) -> None:
        """Try everything that has not been tried once, then stop."""
        with self._lock:
            self._closing = True
            self._lock.notify()

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end; returns whether everything is delivered or given up."""
        self._thread.join(max(0.0, seconds))
        return not self._todo

    @property
    def idle(self) -> bool:
        """Whether everything is delivered or given up."""
        return not self._todo

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._todo and not self._closing:
                    self._lock.wait()
                if not self._todo or (self._closing and self._tries):
                    return
                notice = self._todo[0]
            kind, why = self._target["kind"], ""
            try:
                send(self._target, notice)
                word = "sent"
            except RefusedError as error:
                word, why = "failed", str(error)
            except Exception as error:  # a receiver may answer anything
                word, why = "trying", "%s: %s" % (type(error).__name__, error)
                if time.time() - float(notice["t"]) > GIVE_UP:
                    word = "failed"
            if word == "trying":
                if not self._tries:
                    self._done(notice["id"], kind, "trying: " + why[:_LONGEST])
                self._tries += 1
                with self._lock:
                    if not self._closing:
                        self._lock.wait(min(_SLOWEST, 0.5 * 2**self._tries))
                continue
            self._tries = 0
            self._done(notice["id"], kind, word + (": " + why[:_LONGEST] if why else ""))
            with self._lock:
                self._todo.pop(0)


class Notifier:
    """Decides which events of a host are reported, and keeps and sends the notifications.

    Args:
        spec: The run's spec.json.
        hidden: Values that no text may contain.
    """

    def __init__(
        self, folder: str, spec: Mapping[str, Any], targets: Sequence[NotifyTarget], hidden: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._spec = spec
        # Shortest value of a secret variable, in characters, that is removed from texts
        self._hidden = sorted((one for one in hidden if len(one) >= 6), key=len, reverse=True)
        self._queued = bool(spec.get("queue"))
        self._alarms: dict[str, float] = {}
        self._file = Journal(os.path.join(folder, "notify.jsonl"))
        self._lock = threading.Lock()
        self._targets = [(one, Courier(one, self._note)) for one in targets]
        for target, courier in self._targets:
            for notice in undelivered(folder, target):
                courier.add(notice)

    def see(self, event: Event) -> None:
        """Notify about an event of this host if it is of a reported kind."""
        node = self._spec["node_rank"]
        host = self._spec["hosts"][node]
        if event["e"] == "alarm" and not event.get("over"):
            # An alarm concerns one host; everything else concerns the whole run.
            kind = str(event.get("kind"))
            if kind == "watch":  # its rules have different names, and the leader reports each once in this time
                kind = event["text"].rpartition("(")[2]
            # Seconds in which the same alarm is reported once: it may be raised and cleared repeatedly
            if event["t"] - self._alarms.get(kind, float("-inf")) >= 600.0:
                self._alarms[kind] = event["t"]
                self._tell("alarm", event["t"], 0, "%s: %s" % (host, event["text"]), "")
        elif node:
            return
        elif event["e"] == "attempt":
            if self._queued:
                self._queued = False
                self._tell("started", event["t"], event["attempt"], "left the queue and is starting", "")
        elif event["e"] == "failed":
            text = "attempt %d failed; another follows" % event["attempt"]
            self._tell("failed", event["t"], event["attempt"], text, self._cause(event["cause"]), once=False)
        elif event["e"] == "stall":
            attempt = event.get("attempt", 0)
            if event.get("over"):
                self._tell("recovered", event["t"], attempt, "the ranks continue", "")
            else:
                self._tell("stalled", event["t"], attempt, stall_text(event), "")
        elif event["e"] == "verdict":
            self.end(event["t"], event.get("state", "lost"), event.get("attempt", 0), event.get("cause"))

    def end(self, t: float, state: str, attempt: int, cause: Cause | None) -> None:
        """Report the end of the run. A follower does so if the leader is lost."""
        text = "the run " + _ENDS.get(state, "has ended")
        self._tell("failed" if state in ("failed", "lost") else "ended", t, attempt, text, self._cause(cause))

    def close(self) -> None:
        """Try to deliver each notification once, then stop sending."""
        for _, courier in self._targets:
            courier.close()
        until = time.monotonic() + LIMIT + 1.0
        for _, courier in self._targets:
            courier.join(until - time.monotonic())

    def finish(self, patience: float) -> None:
        """Send until everything is delivered or given up, for `patience` seconds at most."""
        until = time.monotonic() + patience
        while time.monotonic() < until and not all(courier.idle for _, courier in self._targets):
            time.sleep(0.2)

    def _cause(self, cause: Cause | None) -> str:
        if not cause:
            return ""
        node, rank = cause.get("node", 0), cause.get("rank")
        hosts = self._spec["hosts"]
        who = str(hosts[node]) if 0 <= node < len(hosts) else "a host"
        message = (cause.get("message") or "").strip().split("\n")[0]
        what = ": ".join(part for part in (cause.get("type"), message) if part) or cause.get("kind") or "unknown"
        return "%s: %s" % (who if rank is None else "rank %s on %s" % (rank, who), what)

    def _tell(self, event: str, t: float, attempt: int, text: str, cause: str, once: bool = True) -> None:
        spec = self._spec
        metrics = newest_metrics(os.path.join(self._folder, "attempt-%d" % attempt)) if attempt else {}
        once = once and event not in ("alarm", "stalled", "recovered")  # an attempt may have several of these
        often = ":%d:%.3f:%08x" % (spec["node_rank"], t, zlib.crc32(text.encode("utf-8", "replace")))
        look = "runs show" if event == "ended" else "diagnose" if event in ("failed", "stalled") else "attach"
        notice = {
            "id": "%s:%s:%d" % (spec["run"], event, attempt) + ("" if once else often),
            "t": t, "event": event, "run": spec["run"], "hosts": list(spec["hosts"])[:64], "attempt": attempt,
            "text": self._safe(text), "cause": self._safe(cause) or None, "by": spec.get("by"),
            **{name: metrics.get(name) for name in ("step", "steps", "loss")},
            "look": "disttui %s %s" % (look, spec["run"]),
        }  # fmt: skip
        with self._lock:
            self._file.add({"e": "due", "notice": notice})
        for target, courier in self._targets:
            if event in target["events"]:
                courier.add(notice)

    def _safe(self, text: str) -> str:
        for value in self._hidden:
            text = text.replace(value, "***")
        return text[:_LONGEST]

    def _note(self, notice: str, kind: str, word: str) -> None:
        with self._lock:
            self._file.add({"t": stamp(), "e": "to", "id": notice, "kind": kind, "word": word})


_ENDS = {"finished": "has finished", "stopped": "was stopped", "failed": "failed", "lost": "is lost"}


def undelivered(folder: str, target: NotifyTarget) -> list[dict[str, Any]]:
    """The notifications of a run that a target wants, and that were neither delivered to it nor given up."""
    try:
        lines = records(read_regular(os.path.join(folder, "notify.jsonl"), 4 << 20).split(b"\n"))
    except OSError:
        return []
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        notice = line.get("notice")
        if line.get("e") == "due" and isinstance(notice, dict) and isinstance(notice.get("id"), str):
            found[notice["id"]] = notice
        elif (
            line.get("e") == "to"
            and line.get("kind") == target["kind"]
            and not str(line.get("word")).startswith("trying")
        ):
            found.pop(str(line.get("id")), None)
    whole = [one for one in found.values() if {"t", "text", "event", "run", "hosts", "cause", "look"} <= one.keys()]
    return [one for one in whole if one["event"] in target["events"]]


def continue_after(folder: str, targets: Sequence[NotifyTarget], why: str) -> None:
    """Send what a supervisor that has ended could not, and report its loss.

    Args:
        why: What became of the supervisor; "" if it ended as it should.
    """
    spec = journal.read_object(os.path.join(folder, "spec.json"))  # the job may have written anything there
    left = any(undelivered(folder, target) for target in targets)
    lost = bool(why) and spec.get("node_rank") == 0
    usable = isinstance(spec.get("hosts"), list) and isinstance(spec.get("node_rank"), int) and spec.get("run")
    if not usable or not (left or lost):
        return
    notices = Notifier(folder, spec, targets)
    if lost:
        end = journal.read_object(os.path.join(folder, "exit.json"))
        attempt = end.get("attempt")
        cause: Cause = {"node": 0, "kind": "supervisor lost", "message": why}
        state = "stopped" if end.get("state") == "stopped" else "failed"
        notices.end(stamp(), state, attempt if isinstance(attempt, int) else 0, None if state == "stopped" else cause)
    # A job of Slurm is paid for as long as this lasts.
    notices.finish(60.0 if "job" in spec else GIVE_UP + 2 * _SLOWEST)


def try_out(host: str, targets: Sequence[NotifyTarget]) -> dict[str, str]:
    """Send a test from this host; returns kind of target → why it failed, "" if it was delivered."""
    t = stamp()
    text = "this is a test: notifications from this host arrive"
    notice = {
        "id": "test:%s:%d" % (host, t), "t": t, "event": "test", "run": "test", "hosts": [host], "attempt": 0,
        "text": text, "cause": None, "by": None, "step": None, "steps": None, "loss": None, "look": "disttui ps",
    }  # fmt: skip
    found: dict[str, str] = {}
    for target in targets:
        try:
            send(target, notice)
            found[target["kind"]] = ""
        except Exception as error:  # a receiver may answer anything
            found[target["kind"]] = (str(error) or type(error).__name__)[:_LONGEST]
    return found


def send(target: NotifyTarget, notice: Mapping[str, Any]) -> None:
    """Deliver a notification.

    Raises:
        RefusedError: The receiver will never accept it.
        Exception: Anything else that went wrong.
    """
    kind, url = target["kind"], target["url"]
    if kind == "email":
        _mail(url, notice)
        return
    body, headers = _message(kind, notice)
    status, reason = _post(url, body, headers)
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise RefusedError("redirects are not followed (%d)" % status)
    if status in (408, 425, 429) or status >= 500:
        raise OSError("the server answered %d" % status)
    raise RefusedError("the server answered %d %s" % (status, reason))


def sentence(notice: Mapping[str, Any]) -> str:
    """A line such as `2node-7f3a failed on n1, n2: …`, with the last step and loss and the command to look."""
    hosts = list(map(str, notice["hosts"]))
    where = ", ".join(hosts[:4]) + (", …" if len(hosts) > 4 else "")
    parts = ["%s: %s" % (notice["run"], notice["text"])]
    if notice["cause"]:
        parts.append("cause: %s" % notice["cause"])
    made = [
        "%s %s" % (name, "%.4g" % value if isinstance(value, float) else value)
        for name in ("step", "loss")
        if (value := notice.get(name)) is not None
    ]
    text = "\n".join([*parts, ", ".join(["on " + where, *made]), notice["look"]])
    return text.encode("utf-8", "replace").decode()  # a host may have sent half of a surrogate pair


def _message(kind: str, notice: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    text = sentence(notice)
    headers = {"Content-Type": "application/json", "Idempotency-Key": _ascii(notice["id"]), "User-Agent": "disttui"}
    if kind == "ntfy":
        high = notice["event"] in ("failed", "stalled", "alarm")
        title = _ascii("%s: %s" % (notice["run"], notice["event"]))
        plain = {"Content-Type": "text/plain; charset=utf-8", "Title": title, "Priority": "4" if high else "3"}
        return text.encode(), {**headers, **plain}
    if kind == "slack":
        for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            text = text.replace(character, entity)
        data: Mapping[str, Any] = {"text": text}
    elif kind == "discord":
        data = {"content": text[:2000], "allowed_mentions": {"parse": []}}
    else:
        data = {"disttui": 1, **notice}
    return json.dumps(data).encode(), headers


def _ascii(text: object) -> str:
    return "".join(one if " " <= one <= "~" else "?" for one in str(text))[:200]


def _post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    """Post, and read nothing but the status, within `LIMIT` seconds. Raises OSError or HTTPException."""
    from base64 import b64encode
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    connection, path = _connection(parts)
    if parts.username:
        login = "%s:%s" % (unquote(parts.username), unquote(parts.password or ""))
        headers = {**headers, "Authorization": "Basic " + b64encode(login.encode()).decode()}
    with _limited(connection):
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, _ascii(answer.reason)


@contextlib.contextmanager
def _limited(connection: Any) -> Iterator[None]:
    """Cut a connection after `LIMIT` seconds, and close it when the block ends."""

    def cut() -> None:
        if connection.sock is not None:
            connection.sock.shutdown(2)

    guard = threading.Timer(LIMIT, cut)
    guard.daemon = True
    guard.start()
    try:
        yield
    finally:
        guard.cancel()
        connection.close()


def _connection(parts: SplitResult) -> tuple[Any, str]:
    """The connection, through the proxy that the login's environment names, and the path to request."""
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    host = parts.hostname or ""
    path = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    proxy = None if proxy_bypass_environment(host) else getproxies_environment().get(parts.scheme)
    if not proxy:
        return kind(host, parts.port, timeout=LIMIT / 2), path
    by = urlsplit(proxy if "://" in proxy else "http://" + proxy)
    connection = kind(by.hostname or "", by.port, timeout=LIMIT / 2)
    if parts.scheme == "https":
        connection.set_tunnel(host, parts.port)
        return connection, path
    place = host if parts.port is None else "%s:%d" % (host, parts.port)
    return connection, "http://%s%s" % (place, path)


def _mail(url: str, notice: Mapping[str, Any]) -> None:
    """Send by SMTP: `smtps://me:password@mail.example.org/you@example.org`, or smtp:// with STARTTLS if offered."""
    import smtplib
    import ssl
    from email.message import EmailMessage
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    to = unquote(parts.path.strip("/"))
    user = unquote(parts.username or "")
    message = EmailMessage()
    message["Subject"] = _ascii("%s: %s" % (notice["run"], notice["event"]))
    message["To"] = to
    message["From"] = user if "@" in user else to
    message["Message-ID"] = "<%s@disttui>" % _ascii(notice["id"]).replace(" ", "-")
    message.set_content(sentence(notice))
    name, port, verified = parts.hostname or "", parts.port or 0, ssl.create_default_context()
    private = name in ("localhost", "127.0.0.1", "::1")
    if parts.scheme == "smtps":
        server: smtplib.SMTP = smtplib.SMTP_SSL(name, port, timeout=LIMIT / 2, context=verified)
    else:
        server = smtplib.SMTP(name, port, timeout=LIMIT / 2)
    try:
        with _limited(server):
            if parts.scheme == "smtp":
                server.ehlo_or_helo_if_needed()
                if server.has_extn("starttls"):
                    # Without a password, verification is optional, as TLS itself is.
                    server.starttls(context=verified if user and not private else None)
                elif user and not private:
                    raise RefusedError("the mail server offers no TLS, so the password was not sent")
            if user:
                server.login(user, unquote(parts.password or ""))
            server.send_message(message)
    except smtplib.SMTPAuthenticationError as error:
        raise RefusedError("the mail server refused the login (%d)" % error.smtp_code) from None
