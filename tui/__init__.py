"""The terminal app: screens and widgets over what `runner` knows."""

from tui import startup as startup  # before anything here imports Textual, which it sets up
