"""What every kind of file comes down to: values at a step."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence

from ..patterns import Record, put

_LONGEST_NAME = 100
_MOST_VALUES = 64
"""Values of one step that are kept."""
_PARTS = re.compile(r"(?:^|[/_.-])(?:val|valid|validation|eval)$", re.IGNORECASE)
_STEPS = 1 << 53
_SUMMARY = ("train_", "total_flos")
"""Below `train/`, what Trainer tells at the end: its loss is the mean of all that came before."""


class MalformedFileError(Exception):
    """A file does not hold what its name says: it is read no further."""


class Sample(NamedTuple):
    """Values at one step, by the names that are known everywhere."""

    step: Optional[int]
    t: Optional[float]
    """Unix time, None where the file has none."""
    values: Record

    def record(self) -> Record:
        """Its values and its step; a value that is a step itself goes before what the file counts."""
        return self.values if self.step is None else {"step": self.step, **self.values}


def note(values: Record, tag: str, number: str) -> None:
    """Note a value under the name that is known everywhere; what has no usable name or number stays out."""
    head, _, last = tag.rpartition("/")
    trains = head.lower() in ("train", "training")
    if trains and last.startswith(_SUMMARY):
        return
    name = last if trains else tag
    if 0 < len(name) <= _LONGEST_NAME and len(values) < _MOST_VALUES:
        try:
            put(values, name, number)
        except (ValueError, OverflowError):
            pass
        values.pop("", None)  # of a name without a letter that is known


def whole_step(value: object) -> Optional[int]:
    """A step as a whole number that JSON can hold, None for anything else."""
    if isinstance(value, float) and abs(value) < _STEPS and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _STEPS else None


def together(samples: Sequence[Sample]) -> List[Sample]:
    """One sample for each step, where one value after the other was written for it."""
    found: List[Sample] = []
    for sample in samples:
        if found and found[-1].step == sample.step and not found[-1].values.keys() & sample.values.keys():
            found[-1].values.update(sample.values)
        else:
            found.append(sample)
    return found


def of_validation(folder: str) -> bool:
    """Whether a folder's name says that what is written there comes from a validation, as `logs/validation` does."""
    return bool(_PARTS.search(folder))


def as_validation(sample: Sample) -> Sample:
    """The same of a validation: its loss is not the training's."""
    return sample._replace(values={("val_loss" if name == "loss" else name): v for name, v in sample.values.items()})
