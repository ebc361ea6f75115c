"""Leases in words, the same on their host and for viewers: whose one is, what of, and how long it lasts."""

from __future__ import annotations

from .leases import Lease
from .names import short

_YEARS = 2 * 365 * 86400.0
"""Seconds from which on nothing more exact is said: hosts, other users and scripts give the figures."""


def holder(lease: Lease, now: float) -> str:
    """Who has what: `alice's llama-7f3a holds GPUs 0, 1, 41 % done, about 3 h left`."""
    user, what = lease["user"], what_of(lease)
    if lease["state"] == "waiting":
        return f"{user}'s {short(lease['run'])} is in line for {what}"
    if lease["kind"] == "run":
        return f"{user}'s {short(lease['run'])} holds {what}{progress(lease, now)}"
    note = f" ({lease['note']})" if lease["note"] else ""
    return f"{user} has {what} by hand{',' * (lease['until'] is None)} {_end(lease, now)}{note}"


def who_has(lease: Lease, now: float) -> str:
    """Whose a lease is and how long it lasts: `alice's llama-7f3a, 41 % done, about 3 h left`."""
    user = lease["user"]
    if lease["state"] == "waiting":
        return f"{user}'s {short(lease['run'])}, which is in line"
    if lease["kind"] == "run":
        return f"{user}'s {short(lease['run'])}{progress(lease, now)}"
    return f"{user}, by hand, {_end(lease, now)}" + (f": {lease['note']}" if lease["note"] else "")


def what_of(lease: Lease) -> str:
    """`GPUs 0, 1`, `the whole host` or `CPUs`."""
    gpus = lease["gpus"]
    if gpus is None:
        return "the whole host"
    return f"GPU{'s' * (len(gpus) > 1)} {', '.join(map(str, gpus))}" if gpus else "CPUs"


def progress(lease: Lease, now: float) -> str:
    """`, 41 % done, about 3 h left`, as far as the run's owner has written it."""
    step, steps = lease["step"], lease["steps"]
    if not step or not steps or step > steps:
        return ""
    left = max(0.0, now - lease["since"]) * (steps - step) / step
    return f", {100 * step // steps} % done, about {span(left)} left"


def span(seconds: float) -> str:
    """A length of time that is not known exactly: `12 s`, `45 min`, `3 h`, `2 d`; `years`, as of an impossible one."""
    if seconds >= _YEARS:
        return "years"
    if seconds < 60:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = round(minutes / 60)
    return f"{hours} h" if hours < 48 else f"{round(hours / 24)} d"


def _end(lease: Lease, now: float) -> str:
    until = lease["until"]
    return "with no end" if until is None else f"for {span(max(0.0, until - now))} more"
