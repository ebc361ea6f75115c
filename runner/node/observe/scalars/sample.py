"""The common result of all formats: values at a step."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence

from ..patterns import Record, put
from ..reports import whole

_MOST_VALUES = 64
"""Values of one step that are kept."""
_PARTS = re.compile(r"(?:^|[/_.-])(?:val|valid|validation|eval)$", re.IGNORECASE)
# Lightning's values of single batches of an evaluation; their step counts the batches of all evaluations.
_OF_BATCHES = re.compile(r"(?:val|valid|validation|eval|test)_.{1,90}_step$")
_SUMMARY = ("train_", "total_flos")
"""Tags below `train/` of Trainer's summary: its loss is the mean over the whole training."""


class MalformedFileError(Exception):
    """A file does not hold what its name says: it is read no further."""


class Sample(NamedTuple):
    """Values at one step, by canonical name."""

    step: Optional[int]
    t: Optional[float]
    """Unix time, None where the file has none."""
    values: Record

    def record(self) -> Record:
        """Its values and the training's step; a value named `step` has priority over the file's own count."""
        if self.step is None or all(_OF_BATCHES.match(name) for name in self.values):
            return self.values
        return {"step": self.step, **self.values}


def note(values: Record, tag: str, number: str) -> None:
    """Note a value under its canonical name; one without a usable name or number is left out."""
    head, _, last = tag.rpartition("/")
    trains = head.lower() in ("train", "training")
    if trains and last.startswith(_SUMMARY):
        return
    name = last if trains else tag
    if 0 < len(name) <= 100 and len(values) < _MOST_VALUES:
        try:
            put(values, name, number)
        except (ValueError, OverflowError):
            pass
        values.pop("", None)  # from a name without a usable character


def whole_step(value: object) -> Optional[int]:
    """A step as a whole number that JSON can hold, None for anything else."""
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
    """The same sample as a validation's: its loss is not the training loss."""
    return sample._replace(values={("val_loss" if name == "loss" else name): v for name, v in sample.values.items()})
