"""The first screen: what runs, what has run, and what can be run."""

from __future__ import annotations

from tui.screens.base import DisttuiScreen


class HomeScreen(DisttuiScreen):
    """Runs, profiles and hosts."""
