"""The server for one viewer: answers requests and sends streams over one SSH channel.

Ends with the channel. Everything that must outlive the viewer belongs to the supervisor.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Optional

from ...protocol.frames import read_frame
from ...protocol.names import RUN_DIR
from ..problem import Problem
from .sender import Sender

if TYPE_CHECKING:
    from ...protocol import requests
    from ...protocol.facts import Facts
    from .leasing import Claims

SILENCE = 60.0
"""Seconds of the viewer's silence after which it counts as gone."""


class Server:
    """Runs each request in a thread of its own; a stream ends when its request is cancelled or the viewer goes."""

    def __init__(self, node_zip: str, train_zip: Optional[str], sender: Sender) -> None:
        self.node_zip = node_zip
        self.train_zip = train_zip
        self.sender = sender
        self.heard = time.monotonic()
        self._cancelled: Dict[int, threading.Event] = {}
        self._file_numbers = itertools.count(1)
        """Of mirrored files: one viewer may mirror several parts of a run. 0 is the file of `read` and `fetch`."""
        self._reading = threading.Lock()
        """Held by one `read` at a time: concurrent ones would alternate on the output at every piece."""
        self._claiming = threading.Lock()
        self._claimed: Optional[Claims] = None
        self._operations: Dict[requests.Op, Callable[[Any], object]] = {
            "probe": self._probe,
            "complete": self._complete,
            "start": self._start,
            "submit": self._submit,
            "lead": self._lead,
            "stop": self._stop,
            "move": self._move,
            "status": self._status,
            "forget": self._forget,
            "stacks": self._stacks,
            "orphans": self._orphans,
            "leases": self._leases,
            "lease": self._lease,
            "release": self._release,
            "list": self._list,
            "files": self._files,
            "code": self._code,
        }
        self._streams: Dict[requests.Op, Callable[[Any, int], object]] = {
            "mirror": self._mirror,
            "telemetry": self._telemetry,
            "read": self._read,
            "fetch": self._fetch,
        }

    def handle(self, request: Any) -> None:
        """Handle one frame of the viewer."""
        self.heard = time.monotonic()
        if "cancel" in request:
            cancelled = self._cancelled.get(request["cancel"])
            if cancelled:
                cancelled.set()
        elif "op" in request:
            self._cancelled[request["id"]] = threading.Event()
            threading.Thread(target=self._answer, args=(request,), daemon=True).start()

    def beat(self) -> None:
        """Send a beat every second, and end the process when the viewer has been silent for too long."""
        # In a separate thread: a write to a viewer that is cut off may block on a full pipe for ever.
        threading.Thread(target=self._end_alone, daemon=True).start()
        while True:
            self.sender.json({"beat": time.time()})
            time.sleep(1.0)

    def _end_alone(self) -> None:
        while time.monotonic() - self.heard < SILENCE:
            time.sleep(1.0)
        os._exit(0)

    def _answer(self, request: Any) -> None:
        number = request["id"]
        try:
            answer: Dict[str, object] = {"ok": self._do(request["op"], request, number)}
        except Problem as problem:
            answer = {"error": {"what": problem.what, "cure": problem.cure}}
        except OSError as error:
            answer = {"error": {"what": str(error), "cure": ""}}
        except Exception:
            import traceback

            answer = {
                "error": {
                    "what": traceback.format_exc(),
                    "cure": "This is a bug of disttui: please report it.",
                }
            }
        self._cancelled.pop(number, None)
        try:
            self.sender.json({"id": number, **answer})
        except OSError:
            os._exit(0)

    def _do(self, op: requests.Op, request: Any, number: int) -> object:
        if op in self._operations:
            return self._operations[op](request)
        if op in self._streams:
            return self._streams[op](request, number)
        raise Problem("this host's node program does not know '%s'" % op)

    def _probe(self, request: requests.ProbeRequest) -> Facts:
        from ..probe.report import probe

        return probe(request)

    def _complete(self, request: requests.CompleteRequest) -> requests.Completed:
        from .complete import complete

        return complete(str(request.get("path", "")), str(request.get("workdir") or "~"))

    def _code(self, request: requests.CodeRequest) -> requests.CodeState:
        from ..probe.code import state

        return state(str(request.get("workdir") or "~"), request.get("script"))

    def _start(self, request: requests.StartRequest) -> requests.Started:
        from .runs import start

        return start(request, self.node_zip, self.train_zip, self._claims())

    def _leases(self, request: requests.LeasesRequest) -> requests.LeasesAnswer:
        from .leasing import list_leases

        return list_leases(request)

    def _lease(self, request: requests.LeaseRequest) -> requests.Leased:
        return self._claims().take(request)

    def _release(self, request: requests.ReleaseRequest) -> requests.Released:
        return self._claims().release(request)

    def _claims(self) -> Claims:
        from .leasing import Claims

        with self._claiming:
            if self._claimed is None:
                self._claimed = Claims()
        return self._claimed

    def _submit(self, request: requests.SubmitRequest) -> requests.Submitted:
        from .runs import submit

        return submit(request, self.node_zip, self.train_zip)

    def _lead(self, request: requests.LeadRequest) -> requests.Nothing:
        from .runs import lead

        return lead(_folder(request), request["leader"])

    def _stop(self, request: requests.StopRequest) -> requests.Stopped:
        from .runs import request_stop

        return request_stop(_folder(request), bool(request.get("now")), str(request.get("reason", "user")))

    def _move(self, request: requests.MoveRequest) -> requests.Nothing:
        from .runs import move

        return move(_folder(request), int(request["priority"]), float(request["order"]))

    def _status(self, request: requests.StatusRequest) -> requests.Alive:
        from .runs import status

        return status(_folder(request), settle=bool(request.get("settle", True)))

    def _forget(self, request: requests.Part) -> requests.Nothing:
        from .runs import forget

        return forget(_folder(request))

    def _stacks(self, request: requests.Part) -> requests.StacksAnswer:
        from ..observe.stacks import collect
        from . import slurm

        folder = _folder(request)
        job = slurm.job_of(folder)
        return slurm.stacks(folder, job) if job else {"ranks": collect(folder)}

    def _mirror(self, request: requests.MirrorRequest, number: int) -> requests.Nothing:
        from . import slurm
        from .mirror import Mirror

        folder = _folder(request)

        def tell(event: Dict[str, object]) -> None:
            self.sender.json({"id": number, "event": event})

        job = slurm.job_of(folder)
        mirror = Mirror(
            folder, request.get("have", {}), request.get("tail"), tell, self.sender.data, self._file_numbers,
            shared=job is not None,
        )  # fmt: skip
        with slurm.queue_news(folder, job, tell, bool(request.get("settle"))):
            mirror.run(self._cancelled[number])
        return {}

    def _list(self, request: requests.ListRuns) -> requests.Listed:
        from .listing import list_runs

        return {"runs": list_runs(request.get("run_dir") or RUN_DIR, request.get("run"))}

    def _read(self, request: requests.ReadRequest, number: int) -> requests.ReadUpTo:
        from .reading import read

        with self._reading:
            return read(_folder(request), request, self.sender.data, self._cancelled[number])

    def _files(self, request: requests.Part) -> requests.FilesAnswer:
        from .reading import files, outputs_of

        return files(_run_folder(request), outputs_of(_folder(request)))

    def _fetch(self, request: requests.FetchRequest, number: int) -> requests.Fetched:
        from .reading import fetch, outputs_of

        outputs = outputs_of(_folder(request))
        return fetch(_run_folder(request), outputs, request, self.sender.data, self._cancelled[number])

    def _telemetry(self, request: requests.TelemetryStream, number: int) -> requests.Nothing:
        from ..telemetry.processes import most_of
        from ..telemetry.sampler import Sampler

        cancelled = self._cancelled[number]
        sampler = Sampler(os.path.expanduser("~"), processes=most_of(request.get("processes")))
        try:
            while not cancelled.is_set():
                self.sender.json({"id": number, "event": sampler.sample({})})
                cancelled.wait(max(0.2, float(request.get("interval", 1.0))))
        finally:
            sampler.close()
        return {}

    def _orphans(self, request: requests.OrphansRequest) -> requests.OrphansAnswer:
        from .orphans import orphans

        run_dirs = [RUN_DIR, *map(str, request.get("run_dirs") or [])]
        return {"found": orphans(bool(request.get("end")), str(request.get("run") or ""), run_dirs)}


def _folder(request: requests.Part) -> str:
    from .runs import own_folder

    return own_folder(request.get("run_dir") or RUN_DIR, request["run"], int(request["node_rank"]))


def _run_folder(request: requests.Run) -> str:
    from .runs import own_folder

    return os.path.dirname(own_folder(request.get("run_dir") or RUN_DIR, request["run"], 0))


def main(node_zip: str, train_zip: Optional[str], stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Serve one viewer until its channel closes."""
    server = Server(node_zip, train_zip, Sender(stdout))
    threading.Thread(target=server.beat, daemon=True).start()
    try:
        while True:
            request = read_frame(stdin)
            if request is None:
                break
            server.handle(request)
    finally:
        # Threads may be blocked in a write to a channel that nobody reads.
        os._exit(0)
