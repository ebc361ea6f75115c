"""Limits that both ends observe."""

from __future__ import annotations

CHUNK = 64 * 1024
"""The most bytes of a file in one `D` frame."""
CHECKED = 1024
"""Bytes before the resume offset of a mirrored file whose checksum must match the viewer's copy."""
READ_LIMIT = 16 << 20
"""Bytes that one `read` may ask for."""
CODE_DIFF = 256 * 1024
"""Characters of the uncommitted changes that a run keeps."""
CODE_UNTRACKED = 200
"""Names of untracked files that a run keeps."""
MOST_RANKS, MOST_GPUS = 1024, 64
"""The most of one host."""
MOST_METRICS = 1000
"""The most names of metrics of one rank; a script that invents more keeps its first ones."""
MOST_FILES = 16_384
"""The most files of a run on one host: a hundred attempts of eighty ranks."""
MOST_ORPHANS = 5000
"""Processes of ended runs that a host lists at a time, those of the asking user first; it ends all."""
MOST_DESCRIBED = 10
"""Processes of exit.json that are described: it has a reserved space."""
