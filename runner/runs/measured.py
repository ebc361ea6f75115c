"""The user's file of `check --train` measurements: the last ones of each host, and the last of each set of hosts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from disttui.runner import private
from disttui.runner.planning import bytegpt
from disttui.runner.planning.checks import HostFigures
from disttui.runner.planning.tournament import Prediction
from disttui.runner.profile.schema import Profile
from disttui.runner.untrusted.decode import build
from disttui.runner.untrusted.records import json_object
from disttui.runner.user.folders import user_folder

_KEPT, _MOST, _MOST_BYTES = 8, 1000, 1 << 20
_OF_STEP = (
    "layers", "heads", "width", "context", "batch_size", "accumulate", "global_batch", "precision", "compress",
    "sync_interval",
)  # fmt: skip
"""Options of the built-in job that affect the time of a step."""


@dataclass(frozen=True)
class _OfHost:
    address: Annotated[str, 300]
    figures: HostFigures


@dataclass(frozen=True)
class _OfHosts:
    key: Annotated[str, 4096]
    t: float
    ranks: tuple[int, ...]
    prediction: Prediction


@dataclass(frozen=True)
class Measurements:
    """The content of the file, oldest first."""

    hosts: Annotated[tuple[_OfHost, ...], _MOST] = ()
    steps: Annotated[tuple[_OfHosts, ...], _MOST] = ()

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> Measurements:
        """Load the file; empty if it is missing, or was not written by disttui."""
        try:
            return build(cls, json_object(private.read(_path(environ), _MOST_BYTES)[0]) or {})
        except OSError:
            return cls()

    def of_host(self, address: str) -> list[HostFigures]:
        """The last measurements of a host."""
        return [one.figures for one in self.hosts if one.address == address]

    def of_step(self, profile: Profile) -> _OfHosts | None:
        """The measurement of a step of this built-in job on these hosts."""
        return next((one for one in reversed(self.steps) if one.key == _key(profile)), None)

    def save(
        self, environ: Mapping[str, str], profile: Profile, found: Sequence[HostFigures], step: Prediction | None
    ) -> None:
        """Write the file with a new measurement of a profile's hosts."""
        new = [_OfHost(host.host, one) for host, one in zip(profile.hosts, found, strict=True)]
        counts: Counter[str] = Counter()
        hosts: list[_OfHost] = []
        for one in reversed((*self.hosts, *new)):
            counts[one.address] += 1
            if counts[one.address] <= _KEPT:
                hosts.append(one)
        steps = list(self.steps)
        if step:
            steps = [one for one in steps if one.key != _key(profile)]
            steps.append(_OfHosts(_key(profile), found[0].t, tuple(one.ranks for one in found), step))
        kept = Measurements(tuple(hosts[:_MOST][::-1]), tuple(steps[-_MOST:]))
        path = _path(environ)
        with suppress(OSError):
            private.make_folder(path.parent)
            private.replace(path, json.dumps(asdict(kept)))


def _path(environ: Mapping[str, str]) -> Path:
    return user_folder("state", environ) / "measured.json"


def _key(profile: Profile) -> str:
    job = profile.job.target
    options = bytegpt.read(job.args if job.kind == "builtin" else ())
    return json.dumps([job.kind, *(host.host for host in profile.hosts), *(getattr(options, one) for one in _OF_STEP)])
