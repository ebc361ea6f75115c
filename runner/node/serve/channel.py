"""The server for one viewer: answers requests and sends streams over an SSH channel.

It ends with the channel, once the starts and stops that it was asked for are complete. Everything else that must
outlive the viewer belongs to the supervisor.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, cast

from ...protocol.frames import Unpacker, pack_data, pack_json
from ...protocol.names import RUN_DIR
from ..problem import Problem, of_limits

if TYPE_CHECKING:
    from io import BufferedReader

    from ...protocol import checks, requests
    from ...protocol.facts import Facts
    from .leasing import Claims

SILENCE = 60.0
"""Seconds of silence after which the viewer counts as gone."""
_LATER = 3.0
"""Seconds from a copy of code to the spare one, or less if the viewer leaves: the start of its run comes first."""
# Operations whose handlers also take the number of the request: they send events, or can be cancelled.
_STREAMS = ("mirror", "telemetry", "read", "fetch", "put", "stage", "environment", "setup", "offer", "gather", "listen")


class Server:
    """Runs each request in its own thread; a stream ends when its request is cancelled or the viewer disconnects."""

    def __init__(self, node_zip: str, train_zip: Optional[str], sender: Sender) -> None:
        self.node_zip = node_zip
        self.train_zip = train_zip
        self.sender = sender
        self.heard = time.monotonic()
        self._cancelled: Dict[int, threading.Event] = {}
        self._file_numbers = itertools.count(1)
        """Ids of mirrored files: one viewer may mirror several parts of a run. 0 is the file of `read` and `fetch`."""
        self._reading = threading.Lock()
        """Held by one `read` at a time: concurrent reads would take turns on the output after every piece."""
        self._whole: List[int] = []
        """Requests to complete even without their viewer: half of one would leave a run that never ends."""
        self._uploads: Dict[int, queue.Queue[bytes]] = {}
        """Pieces that arrive for each `put`."""
        self._leaving = threading.Event()
        self._newest: Optional[requests.SyncRequest] = None
        """The request of the newest code, of which a spare copy is made."""
        self._spare: Optional[threading.Thread] = None
        self._claiming = threading.Lock()
        self._claimed: Optional[Claims] = None

    def handle(self, request: Any) -> None:
        """Handle one frame from the viewer."""
        self.heard = time.monotonic()
        if isinstance(request, tuple):
            self._take(*request)
        elif "cancel" in request:
            cancelled = self._cancelled.get(request["cancel"])
            if cancelled:
                cancelled.set()
        elif "op" in request:
            self._cancelled[request["id"]] = threading.Event()
            if request["op"] in ("start", "submit", "stop"):
                self._whole.append(request["id"])
            if request["op"] == "put":
                self._uploads[request["id"]] = queue.Queue(64)  # pieces of an upload that may wait for the disk
            try:
                threading.Thread(target=self._answer, args=(request,), daemon=True).start()
            except RuntimeError as error:
                self._send(request["id"], _failed(error))

    def _take(self, number: int, generation: int, offset: int, data: memoryview) -> None:
        """Pass a piece of an upload to its request; later frames wait while the disk is slow."""
        while number in self._uploads:
            try:
                self._uploads[number].put(bytes(data), timeout=1.0)
                return
            except queue.Full:
                self.heard = time.monotonic()
            except KeyError:
                return

    def beat(self) -> None:
        """Send a heartbeat every second."""
        while True:
            self.sender.json({"beat": time.time()})
            time.sleep(1.0)

    def end_alone(self) -> None:
        """End the process when the viewer has been silent for too long."""
        # Not in `beat`: a write to a disconnected viewer may block on a full pipe forever.
        while time.monotonic() - self.heard < SILENCE:
            time.sleep(1.0)
        self.leave()

    def leave(self) -> None:
        """End this process without its threads, which may be blocked in a write to a channel that is not read."""
        deadline = time.monotonic() + SILENCE
        while any(number in self._cancelled for number in self._whole) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._leaving.set()
        if self._spare:
            self._spare.join(SILENCE)
        os._exit(0)

    def _answer(self, request: Any) -> None:
        number = request["id"]
        try:
            answer: Dict[str, object] = {"ok": self._do(request["op"], request, number)}
        except Exception as error:
            answer = _failed(error)
        self._send(number, answer)

    def _send(self, number: int, answer: Mapping[str, object]) -> None:
        self._cancelled.pop(number, None)
        try:
            self.sender.json({"id": number, **answer})
        except OSError:
            pass  # the viewer is gone, which the end of its requests shows as well

    def _do(self, op: str, request: Any, number: int) -> object:
        handler = getattr(self, f"do_{op}", None)
        if handler is None:
            raise Problem("this host's node program does not know '%s'" % op)
        return handler(request, number) if op in _STREAMS else handler(request)

    def do_probe(self, request: requests.ProbeRequest) -> Facts:
        from ..probe.report import probe

        return probe(request)

    def do_complete(self, request: requests.CompleteRequest) -> requests.Completed:
        from .listing import complete

        return complete(str(request.get("path", "")), str(request.get("workdir") or "~"))

    def do_code(self, request: requests.CodeRequest) -> requests.CodeState:
        from ..probe.code import state

        return state(str(request.get("workdir") or "~"), request.get("script"))

    def do_sync(self, request: requests.SyncRequest) -> requests.TreeAnswer:
        from .syncing import sync

        return self._placed(request, sync(request, os.path.dirname(self.node_zip)))

    def do_put(self, request: requests.SyncRequest, number: int) -> requests.TreeAnswer:
        from .syncing import put

        def pieces() -> Iterator[bytes]:
            while data := self._uploads[number].get():
                yield data

        try:
            return self._placed(request, put(request, os.path.dirname(self.node_zip), pieces()))
        finally:
            del self._uploads[number]

    def do_environment(self, request: requests.EnvironmentRequest, number: int) -> requests.EnvironmentAnswer:
        if request["build"]:
            return cast("requests.EnvironmentAnswer", self._apart("environment", request, number))
        from ..supervise.environment import find

        return find(request, os.path.dirname(self.node_zip))

    def do_stage(self, request: requests.StageRequest, number: int) -> requests.Staged:
        return cast("requests.Staged", self._apart("stage", request, number))

    def do_setup(self, request: requests.SetupRequest, number: int) -> requests.SetUp:
        from .runs import folder_for

        return cast("requests.SetUp", self._apart("setup", {**request, "folder": folder_for(request["spec"])}, number))

    def _apart(self, part: str, request: Mapping[str, object], number: int) -> object:
        from ..supervise.steps import in_process

        return in_process(part, request, self.node_zip, self._teller(number), self._cancelled[number].is_set)

    def do_offer(self, request: requests.OfferRequest, number: int) -> requests.Nothing:
        from .forwarding import offer

        offer(request, os.path.dirname(self.node_zip), self._teller(number), self._cancelled[number])
        return {}

    def do_gather(self, request: requests.GatherRequest, number: int) -> requests.TreeAnswer:
        from .forwarding import gather

        found = gather(request, os.path.dirname(self.node_zip), self._teller(number), self._cancelled[number])
        return self._placed(request, found)

    def _placed(self, request: requests.SyncRequest, answer: requests.TreeAnswer) -> requests.TreeAnswer:
        """Have a spare copy of a run's code made later; returns the answer."""
        if answer["placed"] and not request.get("data"):
            self._newest = request
            with contextlib.suppress(RuntimeError):  # the limit of processes is reached
                thread = threading.Thread(target=self._make_spare, args=(request,), daemon=True)
                thread.start()
                self._spare = thread
        return answer

    def _make_spare(self, request: requests.SyncRequest) -> None:
        from .syncing import prepare

        self._leaving.wait(_LATER)
        if self._newest is request:
            prepare(request, os.path.dirname(self.node_zip))

    def _teller(self, number: int) -> Callable[[object], None]:
        """Return a function that sends the events of a stream."""
        return lambda event: self.sender.json({"id": number, "event": event})

    def do_inspect(self, request: checks.InspectRequest) -> checks.Inspected:
        from ..probe.health import inspect

        return inspect(request.get("folders", []), bool(request.get("gpus")))

    def do_listen(self, request: checks.ListenRequest, number: int) -> requests.Nothing:
        from ..probe.network import open_ports, prove

        doors = open_ports(request["ports"])
        ports = [door.getsockname()[1] for door in doors]
        event: checks.Listening = {"fixed": ports[0] if len(ports) > 1 else None, "free": ports[-1]}
        self.sender.json({"id": number, "event": event})
        prove(doors, bytes.fromhex(request["key"]), self._cancelled[number], float(request["seconds"]))
        return {}

    def do_dial(self, request: checks.DialRequest) -> checks.DialAnswer:
        from ..probe.network import dial

        return {"dialled": dial(request["targets"], bytes.fromhex(request["nonce"]), float(request["seconds"]))}

    def do_notify(self, request: requests.NotifyRequest) -> requests.Notified:
        from ..notify import try_out

        return {"problems": try_out(str(request["host"]), request["targets"])}

    def do_start(self, request: requests.StartRequest) -> requests.Started:
        from .runs import start

        return start(request, self.node_zip, self.train_zip, self._claims())

    def do_leases(self, request: requests.LeasesRequest) -> requests.LeasesAnswer:
        from .leasing import list_leases

        return list_leases(request)

    def do_lease(self, request: requests.LeaseRequest) -> requests.Leased:
        return self._claims().take(request)

    def do_release(self, request: requests.ReleaseRequest) -> requests.Released:
        return self._claims().release(request)

    def _claims(self) -> Claims:
        from .leasing import Claims

        with self._claiming:
            if self._claimed is None:
                self._claimed = Claims()
        return self._claimed

    def do_submit(self, request: requests.SubmitRequest) -> requests.Submitted:
        from .runs import submit

        return submit(request, self.node_zip, self.train_zip)

    def do_lead(self, request: requests.LeadRequest) -> requests.Nothing:
        from .runs import lead

        return lead(_folder(request), request["leader"])

    def do_stop(self, request: requests.StopRequest) -> requests.Stopped:
        from .runs import request_stop

        return request_stop(_folder(request), bool(request.get("now")), str(request.get("reason", "user")))

    def do_move(self, request: requests.MoveRequest) -> requests.Nothing:
        from .runs import move

        return move(_folder(request), int(request["round"]), float(request["order"]))

    def do_status(self, request: requests.StatusRequest) -> requests.Alive:
        from .runs import status

        return status(_folder(request), settle=bool(request.get("settle", True)))

    def do_forget(self, request: requests.Part) -> requests.Nothing:
        from .runs import forget

        return forget(_folder(request))

    def do_stacks(self, request: requests.Part) -> requests.StacksAnswer:
        from ..observe.stacks import collect
        from . import slurm

        folder = _folder(request)
        job = slurm.job_of(folder)
        return slurm.stacks(folder, job) if job else {"ranks": collect(folder)}

    def do_mirror(self, request: requests.MirrorRequest, number: int) -> requests.Nothing:
        from . import slurm
        from .mirror import Mirror

        folder = _folder(request)
        tell = self._teller(number)
        job = slurm.job_of(folder)
        mirror = Mirror(
            folder, request.get("have", {}), request.get("tail"), tell, self.sender.data, self._file_numbers,
            shared=job is not None,
        )  # fmt: skip
        with slurm.queue_news(folder, job, tell, bool(request.get("settle"))):
            mirror.run(self._cancelled[number])
        return {}

    def do_list(self, request: requests.ListRuns) -> requests.Listed:
        from .listing import REBOOTED, fitting, list_runs

        run_dir, run = request.get("run_dir") or RUN_DIR, request.get("run")
        rows = list_runs(run_dir, run)
        rebooted = [str(row["run"]) for row in rows if row.get("dropped") == REBOOTED]
        if rebooted:
            from .runs import queue_again

            again = [queue_again(run_dir, one, self.node_zip, self.train_zip) for one in rebooted]
            if any(again):
                rows = list_runs(run_dir, run)
        found = fitting(rows)
        return {"runs": found, "more": len(found) < len(rows)}

    def do_read(self, request: requests.ReadRequest, number: int) -> requests.ReadUpTo:
        from .reading import read

        with self._reading:
            return read(_folder(request), request, self.sender.data, self._cancelled[number])

    def do_files(self, request: requests.Part) -> requests.FilesAnswer:
        from .reading import files, outputs_of

        return files(_run_folder(request), outputs_of(_folder(request)))

    def do_fetch(self, request: requests.FetchRequest, number: int) -> requests.Fetched:
        from .reading import fetch, outputs_of

        outputs = outputs_of(_folder(request))
        return fetch(_run_folder(request), outputs, request, self.sender.data, self._cancelled[number])

    def do_telemetry(self, request: requests.TelemetryStream, number: int) -> requests.Nothing:
        from ..telemetry.sampler import Sampler, most_of

        cancelled = self._cancelled[number]
        sampler = Sampler(os.path.expanduser("~"), processes=most_of(request.get("processes")))
        try:
            while not cancelled.is_set():
                self.sender.json({"id": number, "event": sampler.sample({})})
                cancelled.wait(max(0.2, float(request.get("interval", 1.0))))
        finally:
            sampler.close()
        return {}

    def do_orphans(self, request: requests.OrphansRequest) -> requests.OrphansAnswer:
        from .orphans import orphans

        run_dirs = [RUN_DIR, *map(str, request.get("run_dirs") or [])]
        return {"found": orphans(bool(request.get("end")), str(request.get("run") or ""), run_dirs)}


def _folder(request: requests.Part) -> str:
    from .runs import own_folder

    return own_folder(request.get("run_dir") or RUN_DIR, request["run"], int(request["node_rank"]))


def _run_folder(request: requests.Run) -> str:
    from .runs import own_folder

    return os.path.dirname(own_folder(request.get("run_dir") or RUN_DIR, request["run"], 0))


def main(node_zip: str, train_zip: Optional[str], stdin: BufferedReader, stdout: BinaryIO) -> None:
    """Serve one viewer until its channel closes."""
    server = Server(node_zip, train_zip, Sender(stdout))
    try:
        for work in (server.beat, server.end_alone):
            threading.Thread(target=work, daemon=True).start()
    except RuntimeError as error:
        problem = of_limits(error)
        raise SystemExit(problem.what if problem else error) from None
    requests = Unpacker()
    try:
        while data := stdin.read1(1 << 16):
            for request in requests.feed(data):
                server.handle(request)
    finally:
        server.leave()


def _failed(error: Exception) -> Dict[str, object]:
    """The answer to a request that raised `error`."""
    problem = error if isinstance(error, Problem) else of_limits(error)
    if problem:
        return {"error": {"what": problem.what, "cure": problem.cure}}
    if isinstance(error, OSError):
        return {"error": {"what": str(error), "cure": ""}}
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("_disttui"):
        what = "%s of this host has no module %s" % (sys.executable, error.name or error)
        return {"error": {"what": what, "cure": "Set `python` to another interpreter of this host."}}
    import traceback

    what = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"error": {"what": what, "cure": "This is a bug of disttui: please report it."}}


class Sender:
    """Writes whole frames to a descriptor from several threads."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def json(self, message: Any) -> None:
        self._write(pack_json(message))

    def data(self, file: int, generation: int, offset: int, data: bytes) -> None:
        """Send bytes of a file."""
        self._write(pack_data(file, generation, offset, data))

    def _write(self, frame: bytes) -> None:
        view = memoryview(frame)
        with self._lock:
            while view:
                view = view[self._stream.write(view) or 0 :]
