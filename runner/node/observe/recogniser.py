"""The metrics in the lines of one rank, whose meaning may depend on earlier lines."""

from __future__ import annotations

import re
from typing import Optional

from .bars import EPOCH, Bars, is_drawn
from .patterns import HINTS, Record, first_epoch, recognise

# Colours and cursor moves; titles and links (OSC), whose addresses hold names and numbers of their own.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x1b\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)")


def may_tell(line: bytes) -> bool:
    """Whether a line may hold metrics: a cheap check before the expressions are applied."""
    lower = line.lower()
    return any(hint in lower for hint in HINTS)


def shows_bar(tail: bytes) -> bool:
    """Whether the newest line, which nothing has ended yet, holds a whole bar."""
    return may_tell(tail) and is_drawn(_text(tail))


class Recogniser:
    """Recognises the common formats of training scripts.

    A counter that restarts with every epoch is continued, so that steps increase over the whole run.

    Args:
        from_0: Whether an earlier attempt has shown that the script counts its epochs from 0.
    """

    def __init__(self, *, from_0: bool = False) -> None:
        self._bars = Bars(from_0=from_0)
        self._from_0 = from_0
        self._epoch = 0.0
        self._step = 0
        self._total = 0
        self._earlier = 0
        self._lay_in_share = False
        """Whether the steps so far were taken for those of the run."""

    def read(self, line: bytes, following: bytes = b"") -> Optional[Record]:
        """The metrics in one line; None or an empty record where it holds none.

        Args:
            following: The next line, as far as it is known: tqdm redraws its bar only now and then, but always behind
                a line that is printed in its place, then with the step of that line.
        """
        text = _text(line)
        record = self._bars.recognise(text)
        if record is not None:
            return record
        record = recognise(text)
        if record is None:
            return None
        if "step" in record:
            self._count_on(record, text)
        elif self._bars.step is not None:
            ahead = self._bars.step_at(_text(following))
            record["step"] = self._bars.step if ahead is None else ahead
        return record

    @property
    def bar_step(self) -> Optional[int]:
        """The step that the training's bar stands at, None before the first bar."""
        return self._bars.step

    def _count_on(self, record: Record, text: str) -> None:
        step, total, epoch = record["step"], record.get("steps"), record.get("epoch")
        if not (isinstance(step, int) and isinstance(total, int) and isinstance(epoch, (int, float))):
            return
        named = EPOCH.search(text)
        epochs = int(named.group(2) or 0) if named else 0
        first = 1 if epochs else first_epoch(text)
        if first is not None and self._from_0:
            first = 0
        before = 0 if first is None else epoch - first
        # The step lies in the part of the whole that is this epoch's: it counts the run.
        # Within one step: shares need not be whole numbers.
        share = (before * total - epochs, (before + 1) * total + epochs)
        whole = epochs and before > 0 and not self._earlier and share[0] <= step * epochs <= share[1]
        goes_on = self._total == 0 and (0 if self._from_0 else 1) < epoch < 1e6
        if (goes_on or self._lay_in_share) and not whole and first is not None:
            # Goes on from a checkpoint; with 1, that is not known by itself. Or the first steps of an epoch happened to
            # lie in its part of the whole.
            self._earlier = int(before) * total
            self._lay_in_share = False
        elif epoch > self._epoch and step < self._step:
            self._earlier += self._total
        self._epoch, self._step, self._total = float(epoch), step, total
        record["step"] = self._earlier + step
        if whole and not self._earlier:
            self._lay_in_share = True
            return
        if epochs:
            record["steps"] = total * epochs
        elif self._earlier or first is not None:
            del record["steps"]


def _text(line: bytes) -> str:
    return _ESCAPES.sub("", line.decode("utf-8", "replace"))
