"""Sends a test notification from every host of a profile."""

from __future__ import annotations

from typing import NamedTuple

from disttui.runner.api.preparing import notify_targets
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.hosts.survey import side_by_side
from disttui.runner.profile import Host, Profile

_PATIENCE = 90.0
"""Seconds: five places, 15 s each, and the connection."""


class Tested(NamedTuple):
    """What became of a test from one host."""

    host: str
    problems: dict[str, str] | DisttuiError
    """Kind of place → why it did not arrive, empty: it did; or why the host cannot be asked."""

    @property
    def arrived(self) -> bool:
        """Whether every place took it."""
        return not isinstance(self.problems, DisttuiError) and not any(self.problems.values())


def try_notify(viewer: Viewer, profile: Profile) -> list[Tested]:
    """Send a notification from every host to every place that the profile and the user's config name.

    Raises:
        InputError: They name none, or a reference has no value.
    """
    targets = notify_targets(viewer, profile)
    if not targets:
        cure = "Add notify: {webhook: …} to the profile, or notifications: to your config."
        raise InputError(f"{profile.name}: nobody is to be notified", cure)

    def one(host: Host) -> Tested:
        try:
            answer = viewer.ask(host, "notify", timeout=_PATIENCE, host=host.name, targets=targets)
            return Tested(host.name, answer["problems"])
        except DisttuiError as error:
            return Tested(host.name, error)

    return side_by_side(one, list(profile.hosts))
