"""The wizard: from hosts to a running training in five steps, each a module of its own."""

from disttui.tui.wizard.screen import WizardScreen

__all__ = ["WizardScreen"]
