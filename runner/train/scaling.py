"""The factor on the loss that keeps the gradients of fp16 in its range."""

from __future__ import annotations

from collections.abc import Mapping

_GROWTH_INTERVAL = 2000
"""Steps without an overflow after which the factor is doubled."""
_LEAST = 1.0
"""Gradients that overflow even without a factor are too large for the training, not for fp16 alone."""


class LossScale:
    """A factor that halves at each overflow and doubles after many steps without one; 1 for other precisions.

    As torch.amp.GradScaler has it, but judged by the norm of the whole gradient, which all ranks know: of a sharded
    gradient only one rank may hold the part that overflowed.

    Args:
        saved: What `state` gave when the checkpoint was written.
    """

    def __init__(self, *, enabled: bool, saved: Mapping[str, float]) -> None:
        self._enabled = enabled
        self.factor = float(saved.get("factor", 2.0**16)) if enabled else 1.0
        self._streak = int(saved.get("streak", 0))
        self.skipped = int(saved.get("skipped", 0))
        """Steps that changed no weight."""

    def accepts(self, *, finite: bool) -> bool:
        """Whether the optimizer may make this step, its gradient being finite or not; adapts the factor."""
        if not self._enabled:
            return True
        self._streak = self._streak + 1 if finite else 0
        if not finite:
            self.factor = max(self.factor / 2, _LEAST)
            self.skipped += 1
        elif self._streak == _GROWTH_INTERVAL:
            self.factor *= 2
            self._streak = 0
        return finite

    @property
    def may_halve(self) -> bool:
        """Whether a smaller factor is left to be tried after an overflow."""
        return self._enabled and self.factor > _LEAST

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps; empty for other precisions."""
        return {"factor": self.factor, "streak": self._streak, "skipped": self.skipped} if self._enabled else {}
