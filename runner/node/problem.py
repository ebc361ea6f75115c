"""The exception for failures that a request to the node program reports to its user."""

from __future__ import annotations

from typing import Optional


class Problem(Exception):
    """Something that the user can correct: what is wrong on this host, and the cure."""

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure


def of_limits(error: Exception) -> Optional[Problem]:
    """The Problem behind an exception caused by a limit of this login; None for any other exception."""
    if not isinstance(error, MemoryError) and "start new thread" not in str(error):
        return None
    import resource

    shown = []
    for letter, limit, unit in (("v", resource.RLIMIT_AS, 1024), ("u", resource.RLIMIT_NPROC, 1)):
        most = resource.getrlimit(limit)[0]
        shown.append("ulimit -%s %s" % (letter, "unlimited" if most == resource.RLIM_INFINITY else most // unit))
    what = "limits of this login stop the node program: %s (%s)" % (str(error) or "out of memory", ", ".join(shown))
    return Problem(what, "Raise the limit in its login script or in /etc/security/limits.conf.")
