"""Dialogs over a screen: questions, lists, help, errors."""
