"""Real TCP connections between hosts: one side listens and proves its identity, the other dials all its addresses."""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Dict, List, Sequence

from .. import ports
from ..problem import Problem

if TYPE_CHECKING:
    from ...protocol.checks import Dialled, DialTarget

NONCE = 16
_PROOF = 32
_CALLERS = 512
"""Connections served at the same time: those of 64 hosts with 4 addresses; strangers may take some of them."""


def open_ports(within: Sequence[int]) -> List[socket.socket]:
    """Listen on all addresses, on the first free port of [first, last], if any, and on one chosen by the kernel."""
    first, last = within
    with contextlib.suppress(Problem):
        return [ports.reserve((first, last)).server, ports.listen(0)]
    return [ports.listen(0)]


def prove(doors: Sequence[socket.socket], key: bytes, over: threading.Event, seconds: float) -> None:
    """Answer each caller's nonce with its HMAC-SHA256 under `key`, until `over` is set or the time is up."""
    deadline = time.monotonic() + seconds
    callers: Dict[socket.socket, float] = {}
    with selectors.DefaultSelector() as selector:
        for door in doors:
            selector.register(door, selectors.EVENT_READ)
        try:
            while not over.is_set() and time.monotonic() < deadline:
                for key_of, _ in selector.select(0.1):
                    one = key_of.fileobj
                    assert isinstance(one, socket.socket)
                    if one in doors:
                        try:
                            caller, _ = one.accept()
                        except OSError:
                            continue
                        if len(callers) >= _CALLERS:
                            caller.close()
                            continue
                        caller.setblocking(False)
                        callers[caller] = time.monotonic() + 5.0
                        selector.register(caller, selectors.EVENT_READ)
                        continue
                    try:
                        nonce = one.recv(NONCE)
                        if len(nonce) == NONCE:
                            one.send(hmac.new(key, nonce, "sha256").digest())
                    except OSError:
                        pass
                    callers[one] = 0.0
                for late in [caller for caller, limit in callers.items() if limit < time.monotonic()]:
                    selector.unregister(late)
                    del callers[late]
                    late.close()
        finally:
            for one in (*callers, *doors):
                one.close()


def dial(targets: Sequence[DialTarget], nonce: bytes, seconds: float) -> List[Dialled]:
    """Connect to all targets concurrently, for at most `seconds` each; the results are in the same order."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=128) as pool:
        return list(pool.map(lambda target: _dial(target, nonce, seconds), targets))


def _dial(target: DialTarget, nonce: bytes, seconds: float) -> Dialled:
    address, port = target["address"], target["port"]
    milliseconds, proof = None, b""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as caller:
            caller.settimeout(seconds)
            begun = time.monotonic()
            caller.connect((address, port))
            milliseconds = round((time.monotonic() - begun) * 1000, 3)
            caller.sendall(nonce)
            while len(proof) < _PROOF and (data := caller.recv(_PROOF - len(proof))):
                proof += data
        error = "" if len(proof) == _PROOF else "connection closed without an answer"
    except socket.timeout:
        error = "timed out" if milliseconds is None else "accepts connections but does not answer"
    except (OSError, OverflowError) as problem:
        error = str(getattr(problem, "strerror", None) or problem)
    return {"ms": milliseconds, "proof": proof.hex(), "error": error}
