"""Home, top, help and what lies over them."""

from __future__ import annotations

from tests.tui.scenes import Scene, in_leased_top

SCENES = (
    Scene("profile-error", (80, 24), ["2", "enter"]),
    Scene("confirm", (80, 24), ["x"]),
    Scene("help", (100, 30), ["question_mark"]),
    Scene("palette", (100, 30), ["ctrl+p", "p", "a"]),
    Scene("top-leased", (120, 36), act=in_leased_top),
    Scene("help-shell", (80, 24), ["question_mark", "slash", *"lease"]),
)
