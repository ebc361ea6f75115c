"""The name of a host as a profile gives it; what it means over SSH is `disttui.runner.transport`'s to find out."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Address:
    """A host as the profile names it: an ssh alias, a `user@host:port`, or `local`."""

    host: str
    user: str | None = None
    port: int | None = None
    transport: str | None = field(default=None, compare=False)
    """Who speaks SSH to it: `builtin` or `ssh`, the program; None: as the user's config says."""

    @property
    def is_local(self) -> bool:
        """Whether this is the machine disttui itself runs on, reached without SSH."""
        return self.host == "local"
