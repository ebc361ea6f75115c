"""The terminal app: screens and widgets over what `runner` knows."""
