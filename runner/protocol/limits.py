"""Bounds that both ends keep."""

from __future__ import annotations

CHUNK = 64 * 1024
"""Bytes of a file that a `D` frame holds at most."""
CHECKED = 1024
"""Bytes before the resume offset of a mirrored file whose checksum must match what the viewer holds."""
READ_LIMIT = 16 << 20
"""Bytes that one `read` may ask for."""
