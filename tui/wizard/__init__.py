"""The wizard: from hosts to a running job in five steps, each in its own module."""

from disttui.tui.wizard.screen import WizardScreen

__all__ = ["WizardScreen"]
