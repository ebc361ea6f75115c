"""disttui's core: everything but the screens."""

__version__ = "0.1.0"
