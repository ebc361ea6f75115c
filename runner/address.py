"""Addresses of hosts as written in a profile; `disttui.runner.transport` resolves them for SSH."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Address:
    """A host as written in the profile: an ssh alias, `user@host:port` or `local`."""

    host: str
    user: str | None = None
    port: int | None = None
    transport: str | None = field(default=None, compare=False)
    """`builtin`, or `ssh` for the ssh program; None: as in the user's config."""

    @property
    def is_local(self) -> bool:
        """Whether this is the machine that disttui runs on, which needs no SSH."""
        return self.host == "local"
