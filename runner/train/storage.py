"""Whether all ranks see one and the same folder: found out by a file that rank 0 leaves there."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .group import from_all, from_rank0


def is_shared(folder: Path, device: Any) -> bool:
    """Whether what rank 0 writes to the folder is what every rank reads there. A collective."""

    def leave() -> list[str]:
        probe, token = folder / f".shared-{secrets.token_hex(8)}", secrets.token_hex(16)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.write_text(token)
        except OSError:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
            return ["", ""]
        return [probe.name, token]

    name, wanted = from_rank0(leave, device)
    try:
        seen = bool(name) and (folder / name).read_text() == wanted
    except (OSError, ValueError):
        seen = False
    everywhere = all(from_all(seen, device))
    if name and not dist.get_rank():
        with suppress(OSError):
            (folder / name).unlink()
    return everywhere
