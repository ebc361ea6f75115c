"""The terminal app: screens and widgets on top of `runner`."""

from disttui.tui import startup as startup  # before anything here imports Textual, which it sets up
