"""Where each value of a profile comes from: the file and line, or `--set`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from runner.profile.nodes import MappingNode, Node, ScalarNode, SequenceNode
from runner.profile.problems import SourceLocation
from runner.profile.render import inline
from runner.profile.schema import Profile


class Origin(NamedTuple):
    """A value that a profile has, and its place."""

    key: str
    value: str
    """As it stands in YAML, on one line."""
    place: SourceLocation


def origins(profile: Profile) -> list[Origin]:
    """Every value that a profile's files give; none of what is decided from the hosts."""
    return list(_leaves(profile.tree, "")) if profile.tree else []


def _leaves(node: Node, key: str) -> Iterator[Origin]:
    if isinstance(node, MappingNode) and node.entries:
        for name, (_, value) in node.entries.items():
            yield from _leaves(value, f"{key}.{name}" if key else name)
    elif isinstance(node, SequenceNode) and node.items:
        places = {(item.place.source, item.place.line) for item in node.items}
        if len(places) == 1 and all(isinstance(item, ScalarNode) for item in node.items):
            texts = [_text(item) for item in node.items if isinstance(item, ScalarNode)]
            yield Origin(key, f"[{', '.join(texts)}]", node.items[0].place)
            return
        for at, item in enumerate(node.items):
            yield from _leaves(item, f"{key}.{at}")
    else:
        text = _text(node) if isinstance(node, ScalarNode) else "{}" if isinstance(node, MappingNode) else "[]"
        yield Origin(key, text, node.place)


def _text(node: ScalarNode) -> str:
    return node.text if node.plain else inline(node.text)
