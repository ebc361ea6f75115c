"""The name of a host as a profile gives it; what it means over SSH is `runner.transport`'s to find out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Address:
    """A host as the profile names it: an ssh alias, a `user@host:port`, or `local`."""

    host: str
    user: str | None = None
    port: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether this is the machine disttui itself runs on, reached without SSH."""
        return self.host == "local"
