"""Plays `python node.zip torchrun …` without torch: the same files and processes in a tenth of the time.

Ranks are started through the real shim. Called as PYTHON stub_torchrun.py node.zip torchrun NPROC FIRST WORLD -- …
by the executable that `runs_kit` makes of it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn


def place(name: str, record: dict[str, Any]) -> None:
    path = Path(os.environ["DISTTUI_DIR"], name + ".part")
    path.touch(0o600)
    path.write_text(json.dumps(record))
    path.rename(path.with_suffix(""))


def tell(code: int, **fields: Any) -> None:
    seen: dict[str, Any] = {
        "t": time.time(),
        "code": code,
        "error": None,
        "signal": None,
        "port_in_use": False,
        "failures": [],
    }
    place("launcher.json", {**seen, **fields})


def end(code: int, **fields: Any) -> NoReturn:
    tell(code, **fields)
    sys.exit(code)


def main() -> None:
    if sys.argv[1] == "-u":  # an option of the Python in whose place this stands
        del sys.argv[1]
    words = sys.argv[1:]
    if os.environ.get("DISTTUI_WATCHED"):
        sys.path.insert(0, words[0])
        from _disttui.node.rank.parent import die_with_supervisor  # type: ignore[import-not-found]

        die_with_supervisor()
    if words[1] == "envexec":
        os.execv(sys.executable, [sys.executable, *words])
    if os.environ.get("STUB_NO_TORCH"):
        end(1, error="no torch in " + sys.executable)
    time.sleep(float(os.environ.get("STUB_WARM", "0")))
    if not os.environ.get("STUB_UNREADY"):
        place("launcher.ready", {"t": time.time(), "pid": os.getpid(), "torch": "stub"})
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return
    order = json.loads(line)
    given = dict(zip(order["args"][::2], order["args"][1::2], strict=True))
    os.environ.update(order["env"])
    nproc, first, world = (int(word) for word in words[2:5])
    port = int(given["--master-port"])
    server = None
    if first == 0:
        try:
            if str(port) in os.environ.get("STUB_TAKEN", "").split(","):
                raise OSError("taken")
            server = listen(port, order.get("listener"))
        except OSError:
            end(1, error="EADDRINUSE", port_in_use=True)
    else:
        with socket.create_connection((given["--master-addr"], port), 30) as master:
            master.sendall(b"%d" % nproc)
    run(nproc, first, world, port, server)


def listen(port: int, number: int | None) -> socket.socket:
    """Listen at a port, or at the socket that comes through a descriptor."""
    if number is not None and not os.environ.get("STUB_DEAF"):
        with socket.socket(fileno=number) as way:
            return socket.socket(fileno=socket.recv_fds(way, 1, 1)[1][0])
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", port))
    server.listen()
    return server


def meet(server: socket.socket, missing: int, stopped: list[int]) -> None:
    """As in torchrun's rendezvous, nobody is through before the ranks of all others have come."""
    server.settimeout(0.1)
    while missing > 0 and not stopped:
        try:
            other, _ = server.accept()
        except TimeoutError:
            continue
        with other:
            missing -= int(other.recv(16) or 0)


def run(nproc: int, first: int, world: int, port: int, server: socket.socket | None) -> None:
    command = [sys.executable, "-u", *sys.argv[6:]]
    ranks = []
    # Until all are started the signal waits, so that none is missed.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    for local in range(nproc):
        own: dict[str, Any] = {
            "RANK": first + local,
            "LOCAL_RANK": local,
            "WORLD_SIZE": world,
            "DISTTUI_PARENT": os.getpid(),
        }
        own.update({"WORLD_SIZE": os.environ.get("STUB_WORLD", world), "MASTER_PORT": port})
        environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        unblock = lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # noqa: E731
        ranks.append(subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=unblock))  # noqa: PLW1509
    stopped: list[int] = []

    def on_term(*_: Any) -> None:
        stopped.append(1)
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, on_term)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    blind_until = os.environ.get("STUB_BLIND_UNTIL")
    while blind_until and not stopped and not Path(blind_until).exists():
        time.sleep(0.01)  # who dies here stays a zombie
    while any(rank.poll() is None for rank in ranks):
        bad = [rank for rank in ranks if rank.poll()]
        if bad and not stopped:
            on_term()
        time.sleep(float(os.environ.get("STUB_POLL", "0.1")))
    failures = [
        {"local_rank": local, "pid": rank.pid, "code": rank.returncode, "t": time.time()}
        for local, rank in enumerate(ranks)
        if rank.returncode
    ]
    if failures:
        tell(1, failures=failures)
    while failures and os.environ.get("STUB_LINGER") and not stopped:
        time.sleep(0.01)  # as torchrun does for up to 30 s, when others of its ranks are slow to end
    if server and not failures:
        meet(server, world - nproc, stopped)
    end(1 if stopped or failures else 0, failures=failures)


main()
