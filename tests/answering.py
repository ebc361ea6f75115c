"""What stands in the node program's place on hosts of tests; it imports little, since many tests start several."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from disttui.runner.protocol.frames import Unpacker, pack_json

Answer = Mapping[str, Any] | bytes


def serve(answers: Callable[[Mapping[str, Any]], Iterator[Answer]], login: str = "", python: str = "3.11") -> None:
    """Answer requests until nobody asks any more: with frames without their `id`, or raw bytes."""
    lock = threading.Lock()
    out, read = sys.stdout.buffer, open(0, "rb", buffering=0)  # noqa: SIM115
    read.readline()
    marker = json.loads(read.readline())["marker"]

    def say(data: bytes) -> None:
        with lock:
            out.write(data)
            out.flush()

    def answer(request: Mapping[str, Any]) -> None:
        for said in answers(request):
            say(said if isinstance(said, bytes) else pack_json({"id": request["id"], **said}))

    def beat() -> None:
        while True:
            say(pack_json({"beat": time.time()}))
            time.sleep(1.0)

    hello = json.dumps({"python": python, "missing": []})
    say(f"{login}\n{marker} {hello}\n".encode())
    threading.Thread(target=beat, daemon=True).start()
    frames = Unpacker()
    while data := read.read(65536):
        for request in frames.feed(data):
            if isinstance(request, dict) and "op" in request:
                threading.Thread(target=answer, args=(request,), daemon=True).start()
