"""Texts for exit codes and signals."""

from __future__ import annotations

import signal
from typing import Any

SIGNAL_MEANINGS = {
    "SIGKILL": "killed; the kernel's out-of-memory killer does that, or somebody's kill -9",
    "SIGSEGV": "invalid memory access in native code",
    "SIGABRT": "native code gave up (an assertion, or NCCL's watchdog)",
    "SIGBUS": "bus error: a full /dev/shm does that to DataLoader workers",
    "SIGTERM": "asked to end by something outside disttui",
    "SIGILL": "illegal instruction: a library built for another CPU",
    "SIGFPE": "arithmetic error in native code",
}


def code_words(code: Any) -> str:
    """The text for an exit code or signal: `exit code 3`, `SIGKILL (…)`."""
    if not isinstance(code, int):
        return "an unknown exit code"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
    meaning = SIGNAL_MEANINGS.get(name)
    return f"{name} ({meaning})" if meaning else name
