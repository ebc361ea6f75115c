"""disttui's core: everything that is not a screen."""

__version__ = "0.1.0"
