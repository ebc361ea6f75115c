"""A viewer's operations on this host's leases: list, take, release."""

from __future__ import annotations

import glob
import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ...protocol.names import RUN
from .. import leases
from ..problem import Problem

if TYPE_CHECKING:
    from ...protocol import requests
    from ...protocol.facts import Gpu
    from ...protocol.files import Spec

_LIMIT = 10.0
"""Seconds for nvidia-smi."""
_DEVICES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*", "/dev/accel*")
"""Devices that GPUs of any vendor have, even if no program lists them."""


class Claims:
    """Leases taken for runs that start next; they end with this process unless a supervisor inherits them."""

    def __init__(self) -> None:
        self._held: Dict[Tuple[str, int], leases.HeldLease] = {}

    def take(self, request: requests.LeaseRequest) -> requests.Leased:
        """Take a lease for a run, or a manual one. Raises Problem."""
        gpus, run = request["gpus"], str(request.get("run", ""))
        if not run:
            return _take_by_hand(request)
        if not RUN.fullmatch(run):
            raise Problem(f"{run!r} is not a run id", "use letters, digits, '.', '_' and '-'")
        node = int(request.get("node_rank", 0))
        if (run, node) not in self._held:
            try:
                text = leases.new_text(run, node, gpus, request["by"], quota=request.get("quota"))
                self._held[run, node] = leases.take(text)
            except leases.Taken:
                raise
            except Problem:
                pass  # the start reports it
        return {"until": None, "lease": ""}

    def for_start(self, spec: Spec) -> Tuple[Optional[leases.HeldLease], str]:
        """The lease for a run's supervisor: the one taken before, or a new one; otherwise the reason for having none.

        Raises:
            Taken: Others hold what the run uses.
            Problem: The run is queued and its place in the queue is not visible to others.
        """
        held = self._held.pop((spec["run"], spec["node_rank"]), None)
        if held is not None:
            return held, ""
        text = leases.new_text(spec["run"], spec["node_rank"], spec["gpus"] or [], spec.get("by") or "")
        text["quota"] = spec.get("quota")
        queue = spec.get("queue")
        if queue:
            text["state"], text["alone"] = "waiting", True
            text["round"], text["order"] = queue["round"], queue["order"]
            if queue["any_of"]:
                text["count"], text["gpus"] = len(text["gpus"] or ()), queue["any_of"]
        try:
            return leases.take(text, ignore=bool(spec.get("ignore_leases"))), ""
        except leases.Taken:
            raise
        except Problem as problem:
            if queue:
                raise
            return None, problem.what

    def release(self, request: requests.ReleaseRequest) -> requests.Released:
        """Release what was taken for a run that does not start, or manual leases. Raises Problem."""
        run = request.get("run")
        if run is None:
            return {"leases": leases.release_by_hand(request.get("gpus"), request.get("lease"))}
        for key in [key for key in self._held if key[0] == run]:
            self._held.pop(key).release()
        return {"leases": []}


def list_leases(request: requests.LeasesRequest) -> requests.LeasesAnswer:
    """All leases of this host, and its GPUs with the processes on them."""
    seen = leases.look()
    problems = [seen.problem] if seen.problem else []
    gpus: List[Gpu] = []
    if request.get("gpus", True):
        from ..probe import amd, gpu

        gpus = gpu.facts(problems, _LIMIT) or amd.facts(problems, _LIMIT)
    return {
        "leases": seen.leases, "gpus": gpus, "problem": "; ".join(problems), "time": time.time(), "uid": os.getuid()
    }  # fmt: skip


def _take_by_hand(request: requests.LeaseRequest) -> requests.Leased:
    seconds: Any = request.get("seconds")
    until = None if seconds is None else round(time.time() + float(seconds), 3)
    _refuse_unknown(request["gpus"] or [])
    note = leases.printable(str(request.get("note", "")))[:200]
    text = leases.new_text("", 0, request["gpus"], request["by"], until=until, note=note)
    held = leases.take(text)
    held.close()
    return {"until": until, "lease": os.path.basename(held.path)}


def _refuse_unknown(gpus: List[int]) -> None:
    """Raise Problem if this host does not have all of these GPUs; GPUs of other vendors are unknown."""
    if not gpus:
        return
    from ..probe import gpu

    problems: List[str] = []
    known = [one["index"] for one in gpu.facts(problems, _LIMIT)]
    missing = [one for one in gpus if one not in known]
    if not missing or problems:
        return
    if known:
        raise Problem(f"this host has no GPU {missing[0]}", f"choose from {', '.join(map(str, known))}")
    if not any(map(glob.glob, _DEVICES)):
        raise Problem("this host has no GPU", "omit --gpus to lease the whole host")
