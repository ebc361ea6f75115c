"""Which of the run's processes this one is, as the launcher's environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .problem import Problem


@dataclass(frozen=True)
class RankIdentity:
    """A process's place in the run; the defaults are those of a single process without a launcher."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    launched: bool = False
    """Whether a launcher started it: then there is a rendezvous to join."""

    def hosts(self) -> list[int]:
        """The process count of every host, taken to be this one's: ranks that find otherwise say so when they meet."""
        alike, rest = divmod(self.world_size, self.local_world_size)
        return [1] * self.world_size if rest else [self.local_world_size] * alike

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> RankIdentity:
        """Read torch's variables. Raises Problem where a launcher has set only some of them."""
        if "RANK" not in env:
            return cls()
        missing = [name for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in env]
        if missing:
            raise Problem(f"RANK is set but {', '.join(missing)} is not: start it with torchrun, or unset RANK")
        try:
            local_rank = int(env["LOCAL_RANK"])
            return cls(
                rank=int(env["RANK"]),
                world_size=int(env["WORLD_SIZE"]),
                local_rank=local_rank,
                local_world_size=int(env.get("LOCAL_WORLD_SIZE", local_rank + 1)),
                launched=True,
            )
        except ValueError as error:
            raise Problem(f"RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE must be numbers: {error}") from None
