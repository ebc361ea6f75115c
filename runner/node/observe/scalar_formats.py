"""The formats of metrics files, each read by offset as the file grows: values at a step.

TensorBoard's event files are TFRecords of `tensorflow.Event` messages. Framing:
tensorflow/core/lib/io/record_writer.h; messages: tensorboard/compat/proto/event.proto, summary.proto and tensor.proto.

Weights & Biases' offline files (`run-ID.wandb`) have LevelDB's log format, with records of wandb_internal.proto: a head
of 7 bytes (`:W&B`, 0xBEE1, version 0), then blocks of 32 KiB as in leveldb/doc/log_format.md, but with the plain CRC-32
of zlib (wandb/sdk/internal/datastore.py). Of the records, `Record.history` (2) counts: `HistoryRecord.item` (1) with
`key` (1) or `nested_key` (2) and `value_json` (16), and `HistoryRecord.step` (2) with `num` (1).

Both hold Protocol Buffers (protobuf.dev/programming-guides/encoding). TFRecord's checksum is CRC-32C (Castagnoli, RFC
3720), rotated and shifted by a constant. Tables are those that Lightning's CSVLogger writes.
"""

from __future__ import annotations

import csv
import os
import re
import stat
import struct
import zlib
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from .patterns import Record, as_validated, put
from .reports import whole

_PARTS = re.compile(r"(?:^|[/_.-])(?:val|valid|validation|eval)$", re.IGNORECASE)
# Lightning's values of single batches of an evaluation; their step counts the batches of all evaluations.
_OF_BATCHES = re.compile(r"(?:val|valid|validation|eval|test)_.{1,90}_step$")


class MalformedFileError(Exception):
    """A file's content does not match its name; it is not read further."""


class Sample(NamedTuple):
    """Values at one step, by canonical name."""

    step: Optional[int]
    t: Optional[float]
    """Unix time, None if the file has none."""
    values: Record

    def record(self) -> Record:
        """The values with the training's step; a value named `step` has priority over the file's own counter."""
        if self.step is None or all(_OF_BATCHES.match(name) for name in self.values):
            return self.values
        return {"step": self.step, **self.values}


def note(values: Record, tag: str, number: str) -> None:
    """Note a value under its canonical name; one without a usable name or number is left out."""
    head, _, last = tag.rpartition("/")
    trains = head.lower() in ("train", "training")
    # Tags below `train/` of Trainer's summary: its loss is the mean over the whole training
    if trains and last.startswith(("train_", "total_flos")):
        return
    name = last if trains else tag
    if 0 < len(name) <= 100 and len(values) < 64:  # values of one step that are kept
        try:
            put(values, name, number)
        except (ValueError, OverflowError):
            pass
        values.pop("", None)  # from a name without a usable character


def whole_step(value: object) -> Optional[int]:
    """A step as a whole number that fits into JSON, None for anything else."""
    return whole(value, 1 << 53)


def together(samples: Sequence[Sample]) -> List[Sample]:
    """Merge the samples of each step into one."""
    found: List[Sample] = []
    for sample in samples:
        if found and found[-1].step == sample.step and not found[-1].values.keys() & sample.values.keys():
            found[-1].values.update(sample.values)
        else:
            found.append(sample)
    return found


def of_validation(folder: str) -> bool:
    """Whether a folder's name marks its content as a validation's, as `logs/validation` does."""
    return bool(_PARTS.search(folder))


def as_validation(sample: Sample) -> Sample:
    """The sample as one of a validation: its loss is not the training loss."""
    return sample._replace(values=as_validated(sample.values))


Field = Tuple[int, int, Union[int, memoryview]]
"""Number, wire type, and an integer (type 0) or the bytes (types 1, 2 and 5)."""
_FIXED = {1: 8, 5: 4}
_DOUBLE_FORM, _FLOAT_FORM = struct.Struct("<d"), struct.Struct("<f")


def fields(data: memoryview) -> Iterator[Field]:
    """The fields of one message in order. Raises MalformedFileError."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise MalformedFileError("a field of an unknown type")
        if number == 0 or size > end - at:
            raise MalformedFileError("a field that is longer than its message")
        yield number, kind, data[at : at + size]
        at += size


def wire_text(data: memoryview) -> str:
    """A string; bytes that are not UTF-8 are replaced."""
    return bytes(data).decode("utf-8", "replace")


def _varint(data: memoryview, at: int) -> Tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise MalformedFileError("an unterminated number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise MalformedFileError("a number of more than ten bytes")


_POLYNOMIAL = 0x82F63B78  # reflected
_SHIFT = 0xA282EAD8


def masked(data: bytes) -> int:
    """The masked checksum, as stored in the files."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _SHIFT) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The unmasked checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table() -> List[int]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return found


_TABLE = _table()


_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_FLOAT, _DOUBLE = 1, 2


class EventFile:
    """Reads one event file piece by piece."""

    def take(self, piece: bytes, offset: int, samples: List[Sample]) -> int:
        """Parse the piece at `offset`; its samples are appended to `samples`.

        Returns the bytes consumed, more than the piece has if following bytes are to be skipped. Raises
        MalformedFileError.
        """
        at = 0
        while at + _LENGTH.size <= len(piece):
            size, crc = _LENGTH.unpack_from(piece, at)
            if masked(piece[at : at + 8]) != crc or size > 1 << 40:
                raise MalformedFileError("a record whose checksum is wrong")
            body = at + _LENGTH.size
            end = body + size + _CRC.size
            # Bytes of the longest record that is parsed: a scalar takes less than 300; images and histograms are not
            # metrics
            if size <= 4096:
                if end > len(piece):
                    break
                record = piece[body : body + size]
                if masked(record) != _CRC.unpack_from(piece, body + size)[0]:
                    raise MalformedFileError("a record whose checksum is wrong")
                sample = _event(memoryview(record))
                if sample is not None and sample.values:
                    samples.append(sample)
            at = end
        return at


def _event(data: memoryview) -> Optional[Sample]:
    when: Optional[float] = None
    step: Optional[int] = 0  # protobuf's default
    summary: Optional[memoryview] = None
    for number, kind, value in fields(data):
        if number == 1 and kind == 1:
            when = _DOUBLE_FORM.unpack(_bytes(value))[0]
        elif number == 2 and kind == 0:
            step = whole_step(value)
        elif number == 5 and kind == 2:
            summary = _bytes(value)
    if summary is None:
        return None
    sample = Sample(step, when, {})
    for number, kind, value in fields(summary):
        if number == 1 and kind == 2:
            _scalar(sample, _bytes(value))
    return sample


def _scalar(sample: Sample, data: memoryview) -> None:
    tag, found = "", None
    for number, kind, value in fields(data):
        if number == 1 and kind == 2:
            tag = wire_text(_bytes(value))
        elif number == 2 and kind == 5:
            found = _FLOAT_FORM.unpack(_bytes(value))[0]
        elif number == 8 and kind == 2:
            found = _tensor(_bytes(value))
    # Tags that begin so have their content in the metadata, and nothing in their tensor
    if found is not None and not tag.startswith("_hparams_/"):
        note(sample.values, tag, "%.7g" % found)


def _tensor(data: memoryview) -> Optional[float]:
    """The number in a tensor that holds exactly one, otherwise None."""
    dtype = 0
    content: List[float] = []
    for number, kind, value in fields(data):
        if number == 1 and kind == 0:
            dtype = int(value) if isinstance(value, int) else 0
        elif number in (4, 5, 6) and kind in (1, 2, 5):
            raw = _bytes(value)
            is_float = number == 5 or (number == 4 and dtype == _FLOAT)
            if len(raw) == (4 if is_float else 8):
                content += (_FLOAT_FORM if is_float else _DOUBLE_FORM).unpack(raw)
    return content[0] if dtype in (_FLOAT, _DOUBLE) and len(content) == 1 else None


def _bytes(value: object) -> memoryview:
    assert isinstance(value, memoryview)
    return value


_HEAD = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_PART = struct.Struct("<IHB")
_BLOCK = 32768
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LONGEST_VALUE = 40
"""Longest number in JSON, in characters."""


class WandbFile:
    """Reads one offline file piece by piece."""

    def __init__(self) -> None:
        self._begun: Optional[bytearray] = None
        """The record whose last part is still missing; None between records, and for one that is too long."""

    def take(self, piece: bytes, offset: int, samples: List[Sample]) -> int:
        """See `EventFile.take`."""
        at = 0
        if offset == 0:
            if len(piece) < len(_HEAD):
                return 0
            if not piece.startswith(_HEAD):
                raise MalformedFileError("not a header of Weights & Biases")
            at = len(_HEAD)
        while True:
            left = _BLOCK - (offset + at) % _BLOCK
            if left < _PART.size:
                at += left  # the end of a block is padding
                continue
            if at + _PART.size > len(piece):
                break
            crc, size, kind = _PART.unpack_from(piece, at)
            body = at + _PART.size
            if size > left - _PART.size or not _WHOLE <= kind <= _LAST:
                raise MalformedFileError("a record of an unknown kind")
            if body + size > len(piece):
                break
            part = piece[body : body + size]
            if zlib.crc32(part, zlib.crc32(bytes([kind]))) != crc:
                raise MalformedFileError("a record whose checksum is wrong")
            record = self._join(kind, part)
            sample = _history(memoryview(record)) if record else None
            if sample is not None and sample.values:
                samples.append(sample)
            at = body + size
        return min(at, len(piece))

    def _join(self, kind: int, part: bytes) -> Optional[bytes]:
        """The record that a part completes, if any."""
        if kind == _WHOLE:
            return part
        if kind == _FIRST:
            self._begun = bytearray(part)
        elif self._begun is not None:
            self._begun += part
            if len(self._begun) > 64 << 10:  # bytes of the longest record that is parsed
                self._begun = None
        if kind != _LAST or self._begun is None:
            return None
        record, self._begun = bytes(self._begun), None
        return record


def _history(record: memoryview) -> Optional[Sample]:
    for number, kind, value in fields(record):
        if number == 2 and kind == 2 and isinstance(value, memoryview):
            return _history_sample(value)
    return None


def _history_sample(history: memoryview) -> Sample:
    sample = Sample(0, None, {})
    for number, kind, value in fields(history):
        if kind != 2 or not isinstance(value, memoryview):
            continue
        if number == 2:
            numbers = [whole_step(num) for field, sort, num in fields(value) if (field, sort) == (1, 0)]
            sample = sample._replace(step=numbers[-1] if numbers else 0)
        elif number == 1:
            names, number_text = _item(value)
            if names == ["_timestamp"] and number_text:
                sample = sample._replace(t=float(number_text))
            elif number_text and names and not names[0].startswith("_"):
                note(sample.values, ".".join(names), number_text)
    return sample


def _item(data: memoryview) -> Tuple[List[str], str]:
    """The parts of the name, and the text of the number; "" if it is not a number."""
    names: List[str] = []
    number_text = ""
    for number, kind, value in fields(data):
        if kind != 2 or not isinstance(value, memoryview):
            continue
        if number in (1, 2):
            names.append(wire_text(value))
        elif number == 16 and len(value) <= _LONGEST_VALUE:
            number_text = wire_text(value)
    try:
        float(number_text)
    except ValueError:
        number_text = ""
    return names, number_text


EVENTS = "events.out.tfevents."
"""The prefix of event files' names."""


def decoder(path: str) -> Optional[Union[EventFile, WandbFile, CsvFile]]:
    """The decoder for a file of this name, None for other files."""
    name = os.path.basename(path)
    if name.startswith(EVENTS):
        return EventFile()
    if name.endswith(".wandb"):
        return WandbFile()
    return CsvFile() if name.endswith(".csv") else None


class ScalarFile:
    """An open metrics file.

    Args:
        path: The path to open; it may be a descriptor's path below /proc.
        name: The file's name, which determines its format.

    Raises:
        OSError: The file cannot be opened.
        MalformedFileError: It is not a metrics file.
    """

    def __init__(self, path: str, name: str) -> None:
        found = decoder(name)
        if found is None:
            raise MalformedFileError("an unknown kind of file")
        self.name = name
        self._decoder = found
        self.is_of_metrics = not isinstance(found, CsvFile)
        """Whether its format is confirmed: a table may hold anything."""
        self._path = path
        self._offset = 0
        self._damage: Optional[MalformedFileError] = None
        self._validation = of_validation(os.path.dirname(name))
        # Opening a FIFO in its place must not block.
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        seen = os.fstat(self._fd)
        self.key = (seen.st_dev, seen.st_ino)
        if not stat.S_ISREG(seen.st_mode):
            self.close()
            raise MalformedFileError("not a regular file")

    def read(self, budget: int) -> List[Sample]:
        """Return the new samples, of about `budget` bytes at most. Raises MalformedFileError or OSError.

        If the file is damaged, the samples before the damage are returned first and the next call raises.
        """
        if self._damage:
            raise self._damage
        samples: List[Sample] = []
        table = self._decoder if isinstance(self._decoder, CsvFile) else None
        size = os.fstat(self._fd).st_size
        if table and (size < self._offset or os.pread(self._fd, len(table.head), 0) != table.head):
            table.begin_anew()
            self._offset = 0
        while budget > 0:
            # Bytes per read: more than the longest record of any format
            piece = os.pread(self._fd, 64 << 10, self._offset)
            try:
                consumed = self._decoder.take(piece, self._offset, samples) if piece else 0
            except MalformedFileError as error:
                if not samples:
                    raise
                self._damage, consumed = error, 0
            if not consumed:
                break
            self._offset += consumed
            budget -= min(consumed, len(piece))
        samples = together(samples)
        self.is_of_metrics = self.is_of_metrics or bool(samples)
        return [as_validation(sample) for sample in samples] if self._validation else samples

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_COUNTERS = ("step", "global_step", "iter", "iteration", "epoch")
_LONGEST_LINE = 16 << 10
"""Longest line in bytes."""


class CsvFile:
    """Reads one table piece by piece.

    The writer rewrites the whole file when a new name appears; rows that were read before are then skipped.
    """

    def __init__(self) -> None:
        self.head = b""
        """The line with the names, empty until it is read."""
        self._names: List[str] = []
        self._row = 0
        self._taken = 0

    def begin_anew(self) -> None:
        """Read a rewritten file from its beginning."""
        self.head, self._row = b"", 0

    def take(self, piece: bytes, offset: int, samples: List[Sample]) -> int:
        """See `EventFile.take`."""
        end = piece.rfind(b"\n") + 1
        if not end:
            if len(piece) > _LONGEST_LINE:
                raise MalformedFileError("a line of more than %d bytes" % _LONGEST_LINE)
            return 0
        for line in piece[:end].splitlines(keepends=True):
            if not self.head:
                self._begin(line)
                continue
            self._row += 1
            if self._row <= self._taken:
                continue
            self._taken = self._row
            sample = self._read(line)
            if sample is not None:
                samples.append(sample)
        return end

    def _begin(self, line: bytes) -> None:
        names = _cells(line)
        if len(names) > 256 or not any(name.strip().lower() in _COUNTERS for name in names):
            raise MalformedFileError("no column for a step or an epoch")
        self.head, self._names = line, [name.strip() for name in names]

    def _read(self, line: bytes) -> Optional[Sample]:
        values: Record = {}
        for name, cell in zip(self._names, _cells(line)):  # noqa: B905 (Python 3.8)
            if cell.strip():
                note(values, name, cell.strip())
        step = values.pop("step", None)
        return Sample(whole_step(step), None, values) if values.keys() - {"epoch"} else None


def _cells(line: bytes) -> List[str]:
    if len(line) > _LONGEST_LINE:
        raise MalformedFileError("a line of more than %d bytes" % _LONGEST_LINE)
    try:
        return next(csv.reader([line.decode("utf-8", "replace").replace("\0", "")]), [])
    except csv.Error as error:
        raise MalformedFileError(str(error)) from None
