"""Reports of ranks and their launcher. Any script may write into these files, so each record is checked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Mapping, Optional, cast, get_args

from ...protocol.events import Report, ReportKind

if TYPE_CHECKING:
    from ...protocol.files import LauncherEnd, LauncherFailure

_LONGEST_TYPE = 200
_LONGEST_MESSAGE = 64 << 10
_LATEST = 1e11
"""The largest unix time that is accepted, in seconds."""


def report(record: Mapping[str, Any]) -> Optional[Report]:
    """A record of ranks.jsonl with every field of its kind; wrong values are replaced. None if that makes it useless.

    Texts are bounded and can be encoded. A `t` that is not a time is replaced by the current time.
    """
    kind, rank = record.get("e"), whole(record.get("rank"))
    pid = whole(record.get("pid"))
    if kind not in get_args(ReportKind) or rank is None or (kind == "start" and not pid):
        return None
    return Report(
        e=cast("ReportKind", kind),
        rank=rank,
        t=when(record.get("t")),
        pid=pid,
        local_rank=_long(record.get("local_rank")),
        world_size=_long(record.get("world_size")),
        start_time=_long(record.get("start_time")),
        signal=_long(record.get("signal")),
        code=whole(record.get("code"), signed=True),
        type=_text(record.get("type"), _LONGEST_TYPE),
        message=_text(record.get("message"), _LONGEST_MESSAGE),
        said=_text(record.get("said"), _LONGEST_MESSAGE),
        backend=_text(record.get("backend"), _LONGEST_TYPE),
        door=_text(record.get("door"), _LONGEST_TYPE),
        # The exception itself is at the end.
        traceback=_text(record.get("traceback"), -(512 << 10)),
    )


def launcher_end(content: Any, code: int, ranks: int) -> LauncherEnd:
    """The content of launcher.json, every field checked.

    Args:
        content: The file's JSON value, None if it has none.
        code: The launcher's exit code, used if the file has none.
        ranks: The number of ranks on this host.
    """
    fields = content if isinstance(content, dict) else {}
    failures = fields.get("failures")
    checked = [_failure(one, ranks) for one in failures[:ranks]] if isinstance(failures, list) else []
    return {
        "code": whole(fields.get("code"), signed=True) or code,
        "error": _text(fields.get("error"), _LONGEST_MESSAGE),
        "signal": whole(fields.get("signal")),
        "port_in_use": fields.get("port_in_use") is True,
        "failures": [one for one in checked if one is not None],
    }


def whole(value: Any, limit: int = 1 << 31, signed: bool = False) -> Optional[int]:
    """A whole number from 0 (or above `-limit`, if `signed`) to below `limit`, None for anything else."""
    if isinstance(value, float) and abs(value) < limit and value == int(value):
        value = int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and (-limit if signed else -1) < value < limit
    return value if fits else None


def _long(value: Any) -> Optional[int]:
    return whole(value, 1 << 63)


def when(value: Any) -> float:
    """A unix time; the current time if `value` is not one."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _LATEST
    return float(value) if fits else time.time()


def _failure(one: Any, ranks: int) -> Optional[LauncherFailure]:
    if not isinstance(one, dict):
        return None
    local, code = whole(one.get("local_rank"), ranks), whole(one.get("code"), signed=True)
    if local is None:
        return None
    return {"local_rank": local, "code": code, "pid": whole(one.get("pid")), "t": when(one.get("t"))}


def _text(value: Any, limit: int) -> Optional[str]:
    """At most `limit` characters, the last ones if it is negative; without lone surrogates. None if not a text."""
    if not isinstance(value, str):
        return None
    cut = value[limit:] if limit < 0 else value[:limit]
    return cut.encode("utf-8", "replace").decode()
