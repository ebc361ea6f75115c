"""Garbage collection rests while a rank imports torch: a tenth of that time, for objects that live on.

Nothing of this is on the stack meanwhile, nor left afterwards: the import system itself says when it begins and when it
has ended, by an attribute of the module's spec (`_load_unlocked` of importlib). Where it says nothing, garbage is
collected as ever.
"""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import List, Optional, Sequence, Tuple

_SAYS = "_initializing"
_WAITS: "List[_Finder]" = []
"""The finder that has not seen the import yet."""
_BEFORE: "List[Tuple[int, int, int]]" = []
"""The thresholds as they were before the import that goes on."""


def rest_in_imports_of_torch() -> None:
    """Have the first import of torch in this process made without garbage collection."""
    if PathFinder in sys.meta_path:
        _WAITS.append(_Finder())
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _WAITS[0])


class _Finder:
    """Finds torch where Python's own finder does, behind it in the list, and nothing else."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Find it, also for who only wants to know whether it is there."""
        spec = PathFinder.find_spec(name, path, target) if name == "torch" else None
        if spec is not None:
            spec.__class__ = _Spec
        return spec


class _Spec(ModuleSpec):
    """The spec of torch up to the end of its import."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == _SAYS and value:
            _rest()
        elif name == _SAYS:
            super().__setattr__("__class__", ModuleSpec)
            _go_on()


def _rest() -> None:
    if _WAITS and _WAITS[0] in sys.meta_path:
        sys.meta_path.remove(_WAITS.pop())
    if gc.isenabled() and not _BEFORE:
        _BEFORE.append(gc.get_threshold())
        gc.set_threshold(0, *_BEFORE[0][1:])


def _go_on() -> None:
    # What the import itself has set, for the script's own reasons, stays.
    if _BEFORE and gc.get_threshold() == (0, *_BEFORE[0][1:]):
        gc.set_threshold(*_BEFORE[0])
        if not gc.get_freeze_count():
            # Into the oldest generation, as if it had lived through collections: the next one would go through all.
            gc.freeze()
            gc.unfreeze()
    _BEFORE.clear()
