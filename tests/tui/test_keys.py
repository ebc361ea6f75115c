"""Keys of all screens: each has an id and an explanation, and no two conflict."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest
from textual.binding import Binding
from textual.dom import DOMNode

from disttui import tui
from disttui.tui.app import DisttuiApp
from disttui.tui.keys import GROUPS
from disttui.tui.screen import DisttuiScreen
from tests import key_table


def _ours() -> Iterator[type[DOMNode]]:
    """Every screen, widget and app of ours that has keys of its own."""
    for found in pkgutil.walk_packages(tui.__path__, "disttui.tui."):
        for thing in vars(import_module(found.name)).values():
            if isinstance(thing, type) and issubclass(thing, DOMNode) and thing.__module__ == found.name:
                yield thing


def _bindings(kind: type[DOMNode]) -> list[Binding]:
    return list(Binding.make_bindings(vars(kind).get("BINDINGS", ())))


KINDS = sorted((kind for kind in _ours() if _bindings(kind)), key=lambda kind: kind.__qualname__)
APART = {("HomeScreen", "e"), ("WizardScreen", "enter")}
"""Editing a profile, and the example where none can be edited; continuing, and starting at the last step."""
SCREENS = [kind for kind in KINDS if issubclass(kind, DisttuiScreen) and not kind.__subclasses__()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_key_has_an_id_and_words(kind: type[DOMNode]) -> None:
    """The id is what the config remaps, the words are what the help says."""
    for binding in _bindings(kind):
        assert binding.id, binding
        assert binding.description, binding


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_key_means_two_things_in_one_place(kind: type[DOMNode]) -> None:
    """But for those of which check_action never offers two at once."""
    seen: dict[str, str] = {}
    for binding in _bindings(kind):
        if (kind.__name__, binding.key) not in APART:
            assert seen.setdefault(binding.key, binding.action) == binding.action, binding.key


def test_one_id_means_one_action() -> None:
    """Widgets may share a binding, such as the moves; else the config could not name it."""
    seen: dict[str, str] = {}
    for kind in KINDS:
        for binding in _bindings(kind):
            assert binding.id
            assert seen.setdefault(binding.id, binding.action) == binding.action, (kind, binding.id)


@pytest.mark.parametrize("kind", SCREENS, ids=lambda kind: kind.__name__)
def test_every_screen_says_what_it_is_for_and_its_actions_exist(kind: type[DisttuiScreen]) -> None:
    assert kind.HELP
    for binding in _bindings(kind):
        owner, _, name = binding.action.partition("(")[0].rpartition(".")
        assert hasattr(DisttuiApp if owner == "app" else kind, f"action_{name}"), binding
        assert binding.group in GROUPS, binding


def test_page_of_keys_is_that_of_the_bindings() -> None:
    assert key_table.PAGE.read_text(encoding="utf-8") == key_table.page(), "python -m tests.key_table writes it anew"
