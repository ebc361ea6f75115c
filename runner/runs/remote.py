"""The hosts of a known run: connects to them, sends requests to all, updates the mirror, fetches beginnings of logs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.hosts.link import Item, Link
from disttui.runner.hosts.survey import CONNECTS, HostsError, Tell, open_link
from disttui.runner.protocol.limits import READ_LIMIT
from disttui.runner.protocol.requests import Op
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.runs.state import RunState
from disttui.runner.runs.state import link as set_link
from disttui.runner.runs.store import HostStore, held, host_folder
from disttui.runner.runs.summary import Summary, summaries
from disttui.runner.text import clean
from disttui.runner.transport import Connector
from disttui.runner.transport.base import Gate
from disttui.runner.untrusted.records import whole

_SLICE = 0.25
"""Seconds after which a wait checks for signals."""
REACH = 30.0
"""Seconds after which a host that does not answer counts as unreachable."""
GIVEN_UP = 120.0
"""Seconds that hosts have to end their work after another host has failed."""
TAIL = 256 * 1024
"""Bytes at the end of every log with which a late viewer begins."""


@dataclass
class Reached:
    """Open links to the hosts of a run; as a context manager it closes them."""

    links: dict[int, Link] = field(default_factory=dict)
    errors: dict[int, DisttuiError] = field(default_factory=dict)

    def __enter__(self) -> Reached:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self.links.values():
            link.close()

    def refuse_none(self) -> None:
        """Raise the errors if no host can be reached."""
        if not self.links:
            self.refuse_some()

    def refuse_some(self) -> None:
        """Raise the errors if any host cannot be reached."""
        if self.errors:
            raise together(list(self.errors.values()))

    def ask(self, op: Op, nodes: Sequence[int] | None = None, **arguments: Any) -> dict[int, Any]:
        """Send a request to the hosts concurrently; node → answer or DisttuiError."""
        chosen = [node for node in self.links if nodes is None or node in nodes]
        return self.answers({node: self.links[node].submit(op, node_rank=node, **arguments) for node in chosen})

    def answers(self, futures: Mapping[int, Future[Any]]) -> dict[int, Any]:
        """Wait for the answers to requests that were sent; node → answer or DisttuiError."""
        deadline = time.monotonic() + REACH
        return {node: _answer(future, self.links[node].host, deadline) for node, future in futures.items()}


def reach_hosts(
    hosts: Mapping[int, KnownHost],
    connector: Connector,
    limit: float = REACH,
    at_once: Callable[[int, Link], object] | None = None,
) -> Reached:
    """Open a link to each of the hosts concurrently; one that takes longer than `limit` seconds is an error.

    Args:
        at_once: Called with each host's link as soon as it is open, from several threads.
    """
    reached = Reached()
    # The nodes of a Slurm job, and several runs on one host, share one link.
    sharing: dict[tuple[object, ...], list[int]] = {}
    for node, host in hosts.items():
        sharing.setdefault((host.host, host.user, host.port, host.python), []).append(node)
    over = threading.Event()
    lock = threading.Lock()
    gate = Gate(CONNECTS)

    def one(nodes: list[int]) -> None:
        try:
            with gate.turn():
                link = open_link(hosts[nodes[0]].as_host(), connector, any_python=True)
        except DisttuiError as error:
            with lock:
                reached.errors = {**dict.fromkeys(nodes, error), **reached.errors}
            return
        with lock:
            late = over.is_set()
            if not late:
                reached.links.update(dict.fromkeys(nodes, link))
        if late:
            link.close()
            return
        for node in nodes:
            if at_once is not None:  # without the lock: a host that accepts no bytes must not delay the others
                at_once(node, link)

    # Daemon threads: a host that hangs must not delay the end of the command.
    threads = [threading.Thread(target=one, args=(nodes,), daemon=True) for nodes in sharing.values()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        # In slices: a signal that arrives just before Python blocks is handled only once it stops waiting.
        while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            thread.join(min(left, _SLICE))
    with lock:
        over.set()
        for node, host in hosts.items():
            if node not in reached.links:
                late = HostError(host.name, f"unreachable: no answer in {limit:.0f} s", "Check that it is on.")
                reached.errors.setdefault(node, late)
    return reached


def missing(run: KnownRun, folder: Path) -> list[int]:
    """The nodes whose mirror is not complete yet."""
    return [node for node in range(len(run.hosts)) if "exit.json" not in held(host_folder(folder, node))]


def sync(
    run: KnownRun, folder: Path, reached: Reached, tell: Callable[[float], object] | None = None
) -> dict[int, DisttuiError]:
    """Update the mirror: events and metrics completely, logs from their tails on. Links stay open.

    Args:
        tell: Called with the share that has arrived, from any thread. With it, a host may take as long as its files
            keep coming; without it, REACH seconds.

    Returns:
        The errors by node rank.
    """
    copies: dict[int, _Copy] = {}

    def arrived() -> None:
        if tell is not None:
            known = list(copies.values())
            tell(min(1.0, sum(copy.received for copy in known) / max(1, sum(copy.announced for copy in known))))

    for node, link in reached.links.items():
        copies[node] = _Copy(run, node, HostStore(host_folder(folder, node)), link, arrived)
    deadline = time.monotonic() + REACH
    return {node: problem for node, copy in copies.items() if (problem := copy.finish(deadline, tell is not None))}


def removed(run: KnownRun, reached: Reached, nodes: Sequence[int]) -> dict[int, DisttuiError]:
    """Of these nodes, those whose host does not have the run, or could not be asked, with the reason.

    The answers of the others are stored: only a host knows whether the run's supervisor is alive.
    """
    found: dict[int, DisttuiError] = {}
    known: dict[int, Summary] = {}
    for node, answer in reached.ask("list", list(nodes), **run.request()).items():
        if isinstance(answer, DisttuiError):
            found[node] = answer
        elif here := next((one for one in summaries(answer) if one.get("node_rank", node) == node), None):
            known[node] = here
        else:
            name = run.hosts[node].name
            gone = RunRemovedError(name, "the run was removed there")
            found[node] = gone if run.heard else HostError(name, "the run has not been started there yet")
    if len(found) == len(run.hosts) and all(isinstance(one, RunRemovedError) for one in found.values()):
        run.note_removed(sorted(found))
    if known:
        run.summary(known)
    return found


class RunRemovedError(HostError):
    """A host no longer has the folder of a run."""


def without_folders(state: RunState, problems: Mapping[int, DisttuiError]) -> RunState:
    """The state with those hosts marked whose problem says that the run's folder no longer exists."""
    for node, problem in problems.items():
        if isinstance(problem, RunRemovedError):
            state = set_link(state, node, "gone")
    return state


class _Copy:
    """Mirrors one host's present files."""

    def __init__(self, run: KnownRun, node: int, store: HostStore, link: Link, arrived: Callable[[], object]) -> None:
        self.announced = 0
        """Bytes to come according to the files that the host has announced."""
        self.received = 0
        self._store = store
        self._link = link
        self._arrived = arrived
        self._problem: DisttuiError | None = None
        self._done = threading.Event()
        request = {**run.request(), "node_rank": node, "tail": TAIL}
        self._stream = link.stream("mirror", self._take, have=store.have(), **request)
        self._stream.add_done_callback(lambda _: self._done.set())

    def finish(self, deadline: float, patient: bool) -> DisttuiError | None:
        """Wait until everything has arrived, or if `patient` as long as bytes keep coming; return the error, if any."""
        while patient:
            before = self.received
            if self._done.wait(REACH) or self.received == before:
                break
        if not self._done.wait(max(0.0, deadline - time.monotonic())):
            self._problem = self._problem or HostError(self._link.host, "its files are still arriving")
        self._link.cancel(self._stream)
        try:
            self._stream.result(5.0)
        except FutureTimeout:
            pass
        except DisttuiError as error:
            self._problem = self._problem or error
        self._store.close()
        return self._problem

    def _take(self, item: Item) -> None:
        try:
            if isinstance(item, tuple):
                self._store.write(item[0], item[2], item[3])
                self.received += len(item[3])
                self._arrived()
            elif "file" in item:
                self._store.announce(item)
                self.announced += max(0, (whole(item.get("size")) or 0) - (whole(item.get("start")) or 0))
            elif item.keys() & {"caught_up", "ended", "gone"}:
                self._done.set()
        except DisttuiError as error:
            self._problem = error
            self._done.set()


def _answer(future: Future[Any], host: str, deadline: float) -> Any:
    try:
        return future.result(max(0.1, deadline - time.monotonic()))
    except FutureTimeout:
        return HostError(host, f"no answer in {REACH:.0f} s", "Check what keeps the host busy.")
    except DisttuiError as error:
        return error


def together(errors: Sequence[DisttuiError]) -> DisttuiError:
    """Combine several errors into one."""
    return errors[0] if len(errors) == 1 else HostsError(errors)


def stream_all(
    links: Sequence[Link],
    op: Op,
    requests: Mapping[int, Mapping[str, object]],
    kind: str,
    tell: Tell,
    patience: float | None = None,
) -> list[Any]:
    """Send a request to several hosts, and return their answers. If one fails, the others give up.

    Args:
        requests: Node rank → the arguments.
        kind: The type of the progress that `tell` takes.

    Raises:
        DisttuiError: A host failed.
    """

    def begin(node: int, arguments: Mapping[str, object]) -> Future[Any]:
        def take(item: Any) -> None:
            tell(node, kind, clean(str(item.get("line", ""))[:200]) if isinstance(item, dict) else "")

        return links[node].stream(op, take, **arguments)

    asked = {node: begin(node, arguments) for node, arguments in requests.items()}
    wait(asked.values(), patience, FIRST_EXCEPTION)
    failed = [node for node, answer in asked.items() if answer.done() and answer.exception()]
    if failed or not all(answer.done() for answer in asked.values()):
        for node, answer in asked.items():
            if not answer.done():
                links[node].cancel(answer)
        late = wait(asked.values(), GIVEN_UP).not_done
        errors = [asked[node].exception() for node in failed]
        errors += [DisttuiError(f"no answer to '{op}'", host=links[node].host) for node in asked if asked[node] in late]
        raise together([error for error in errors if isinstance(error, DisttuiError)])
    return [answer.result() for answer in asked.values()]


AHEAD = 2
"""Concurrent reads: the host sends one while the answer of the previous one is on its way."""
PIECE = 1 << 20
"""Bytes per write: every system call releases the interpreter's lock and must wait to get it back."""
_LOOK = 1.0
"""Seconds after which a waiting reader checks whether bytes still arrive."""


class Beginning(Protocol):
    """The part of a host's log before the mirrored one, from the offset `upto` on."""

    @property
    def node(self) -> int:
        """Node rank."""

    @property
    def name(self) -> str:
        """The log's name in the mirror."""

    @property
    def upto(self) -> int:
        """Offset."""


def fill_all(
    open_link: Callable[[int], Link], run: KnownRun, wanted: Sequence[Beginning], store: Callable[[int], HostStore]
) -> None:
    """Fetch beginnings of logs into the stores of a locked mirror, over separate links, host by host.

    Raises DisttuiError: the first error; all other parts have been fetched where possible.
    """
    first: DisttuiError | None = None
    for node in sorted({one.node for one in wanted}):
        try:
            link = open_link(node)
        except DisttuiError as error:
            first = first or error
            continue
        with closing(link):
            for one in wanted:
                if one.node == node:
                    try:
                        fill(link, run, node, store(node), one.name, one.upto)
                    except DisttuiError as error:
                        first = first or error
    if first:
        raise first


def fill(link: Link, run: KnownRun, node: int, store: HostStore, name: str, upto: int = 0) -> None:
    """Fetch the part of a log before the first byte in the mirror, back to offset `upto`, if its host still has it.

    Raises DisttuiError.
    """
    written = _Writing(store, name)
    request = {**run.request(), "node_rank": node, "name": name}
    start = below = store.files()[name][0]
    asked: deque[tuple[int, Future[Any]]] = deque()
    try:
        while start > upto:
            while below > upto and len(asked) < AHEAD:
                below, end = max(upto, below - READ_LIMIT), below
                written.ends.add(end)
                asked.append((below, link.stream("read", written.take, **request, offset=below, length=end - below)))
            begin, answer = asked[0]
            _await(link, name, answer, written)
            before = start
            while start in written.came:
                start = written.came.pop(start)
            store.fill(name, before, start)
            if written.failed:
                raise written.failed
            asked.popleft()
            if start > begin:
                raise HostError(link.host, f"the first {start:,} bytes of {name} were deleted (launch.log_limit)")
    finally:
        # Pieces do not carry the id of their request: the link's next stream must not get these.
        for _, answer in asked:
            link.cancel(answer)
        if wait([answer for _, answer in asked], REACH).not_done:
            link.close()


class _Writing:
    """Writes the pieces of reads to their offsets, in large blocks; called by the link's reader."""

    def __init__(self, store: HostStore, name: str) -> None:
        self.ends: set[int] = set()
        """The ends of the reads."""
        self.came: dict[int, int] = {}
        """The written ranges: end → begin."""
        self.bytes = 0
        """Bytes that have arrived."""
        self.failed: DisttuiError | None = None
        self._store = store
        self._name = name
        self._loose: dict[int, tuple[int, list[memoryview]]] = {}
        """Ranges that are not written yet: end → begin, and the bytes between."""

    def take(self, item: Item) -> None:
        """Process a piece of the file."""
        if not isinstance(item, tuple) or self.failed:
            return
        _, _, offset, data = item
        self.bytes += len(data)
        begin, pieces = self._loose.pop(offset, (offset, []))
        pieces.append(data)
        end = offset + len(data)
        if end - begin < PIECE and end not in self.ends:
            self._loose[end] = begin, pieces
            return
        try:
            self._store.put(self._name, begin, b"".join(pieces))
            self.came[end] = begin
        except DisttuiError as error:
            self.failed = error


def _await(link: Link, name: str, answer: Future[Any], written: _Writing) -> None:
    """Wait for the end of a read as long as bytes arrive and can be written."""
    came, since = 0, time.monotonic()
    while not written.failed:
        try:
            answer.result(_LOOK)
        except FutureTimeout:
            if written.bytes > came:
                came, since = written.bytes, time.monotonic()
            elif time.monotonic() - since > REACH:
                raise HostError(link.host, f"{name}: no answer in {REACH:.0f} s") from None
        else:
            return
