"""The terminal app: screens and widgets over what `runner` knows."""

from disttui.tui import startup as startup  # before anything here imports Textual, which it sets up
