"""Limits that both ends observe."""

from __future__ import annotations

PORTS = (29500, 29599)
"""First and last port between hosts, unless launch.ports says otherwise."""
CHUNK = 64 * 1024
"""Most bytes of a file in one `D` frame."""
CHECKED = 1024
"""Bytes before the resume offset of a mirrored file whose checksum must match the viewer's copy."""
READ_LIMIT = 16 << 20
"""Bytes that one `read` may request."""
CODE_DIFF = 256 * 1024
"""Characters of the uncommitted changes that a run keeps."""
CODE_UNTRACKED = 200
"""Names of untracked files that a run keeps."""
MOST_RANKS, MOST_GPUS = 1024, 64
"""Most ranks and GPUs of one host."""
MOST_METRICS = 1000
"""Most metric names of one rank; of a script that invents more, the first ones are kept."""
MOST_FILES = 16_384
"""Most files of a run on one host: a hundred attempts of eighty ranks."""
MOST_ORPHANS = 5000
"""Processes of ended runs that a host lists in one answer, those of the requesting user first; it ends all."""
MOST_DESCRIBED = 10
"""Processes that exit.json describes, since its space is reserved."""
