"""Scripts that use Accelerate or HF Trainer, under torchrun: Accelerate reads its settings from variables.

Unlike `accelerate launch`, this starts unequal numbers of processes, and no host trains alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.planning.launchers import torchrun
from runner.planning.launchers.accelerate_settings import layout_refusal, settings
from runner.planning.launchers.place import Place, Reasoned, Refusal
from runner.profile import Profile

PART = torchrun.PART


def launcher_args(place: Place) -> tuple[str, ...]:
    """The options of one host."""
    return torchrun.launcher_args(place)


def variables(place: Place) -> Mapping[str, Reasoned]:
    """The profile's precision and parallel settings, as Accelerate reads them."""
    return settings(place)


def by_hand(place: Place) -> tuple[str, ...]:
    """The words of the command that does the same without disttui."""
    return torchrun.by_hand(place)


def refusal(profile: Profile, counts: Mapping[str, int], backend: str) -> Refusal | None:
    """What Accelerate cannot divide."""
    return layout_refusal(profile, counts, backend)
