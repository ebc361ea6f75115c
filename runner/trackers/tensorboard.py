"""Event files for TensorBoard: TFRecords of `tensorflow.Event` messages.

node/observe/scalars/event_file.py, which reads them, has the sources of the format. TensorBoard is not needed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from disttui.runner import private
from disttui.runner.node.observe.scalars.reading import EVENTS
from disttui.runner.node.observe.scalars.wire import masked
from disttui.runner.paths import inside
from disttui.runner.trackers.points import MetricPoint, Tracked

_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_LARGEST_FLOAT = 3.4028235677973366e38
"""What is as large or larger has no float of 32 bits."""


def send(place: str, tracked: Tracked, points: Sequence[MetricPoint]) -> str:
    """Write an event file into a folder of its own below the folder `place`; one of the same run is replaced.

    Raises:
        OSError: It cannot be written.
    """
    folder = inside(Path(place), tracked.name)
    private.make_folder(folder, 0o775)
    # TensorBoard reads whatever has "tfevents" in its name. No time in it, as others have: that of a live run may move.
    path, unfinished = inside(folder, EVENTS + tracked.name), inside(folder, f".{tracked.name}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(_record(_double(1, points[0].t) + _text(3, b"brain.Event:2")))
            start = _text(5, _text(1, _hyperparameters(tracked.config, points[0].t)))
            file.write(_record(_double(1, points[0].t) + start))
            for point in points:
                head = _double(1, point.t) + _whole(2, point.step)
                for name, value in point.values.items():
                    file.write(_record(head + _text(5, _text(1, _text(1, name.encode()) + _single(2, value)))))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return str(folder)


def _hyperparameters(config: Mapping[str, str | float], t: float) -> bytes:
    """A summary's value for the HParams dashboard: HParamsPluginData as the metadata of a tensor without content."""
    session = b"".join(
        _text(1, _text(1, name.encode()) + _text(2, _double(2, value) if isinstance(value, int | float) else
                                                 _text(3, value.encode())))
        for name, value in config.items()
    )  # fmt: skip
    content = _text(3, session + _double(5, t))
    plugin = _text(1, _text(1, b"hparams") + _text(2, content))
    tensor = _whole(1, 1) + _text(2, _text(2, _whole(1, 1))) + _text(5, bytes(4))  # one float, 0
    return _text(1, b"_hparams_/session_start_info") + _text(9, plugin) + _text(8, tensor)


def _record(data: bytes) -> bytes:
    size = _LENGTH.pack(len(data))
    return size + _CRC.pack(masked(size)) + data + _CRC.pack(masked(data))


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _whole(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _single(field: int, value: float) -> bytes:
    if abs(value) >= _LARGEST_FLOAT:
        value = float("inf") if value > 0 else float("-inf")
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
