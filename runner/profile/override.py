"""`--set job.args=[…]`: a value put into the tree before it is checked."""

from __future__ import annotations

from collections.abc import Sequence

from runner.profile.nodes import MAX_DEPTH, MappingNode, Node, ScalarNode, SequenceNode, compose
from runner.profile.problems import ProfileErrors, ProfileProblem, SourceLocation, quoted


def apply(root: MappingNode, overrides: Sequence[str], problems: list[ProfileProblem]) -> MappingNode:
    """Return `root` with every `path=value` set; list items by their index, missing mappings made.

    Raises:
        ProfileErrors: One of the overrides cannot be read or does not fit the tree.
    """
    failed: list[ProfileProblem] = []
    node: Node = root
    for override in overrides:
        path, equals, text = override.partition("=")
        place = SourceLocation(f"--set {path.strip()}=…" if equals else f"--set {override}")
        try:
            keys = _keys(path, equals, place)
            value = compose(text, place.source, problems, in_file=False) or ScalarNode(place, "", plain=True)
            node = _put(node, keys, value, place)
        except ProfileErrors as error:
            failed.extend(error.problems)
    if failed:
        raise ProfileErrors([*problems, *failed])
    assert isinstance(node, MappingNode)
    return node


def _keys(path: str, equals: str, place: SourceLocation) -> list[str]:
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise _error(place, "no override", "expected PATH=VALUE, like job.args=[--steps, 10] or hosts.0.port=22")
    if len(keys) > MAX_DEPTH:
        raise _error(place, f"nested deeper than {MAX_DEPTH} levels")
    return keys


def _put(node: Node, keys: list[str], value: Node, place: SourceLocation) -> Node:
    if not keys:
        return value
    key, *rest = keys
    if isinstance(node, SequenceNode):
        if not (key.isascii() and key.isdigit() and len(key) < 6 and int(key) < len(node.items)):
            last = len(node.items) - 1
            raise _error(
                place, f"{quoted(key)} is no index", f"expected 0 to {last}" if last >= 0 else "the list is empty"
            )
        index = int(key)
        item = node.items[index]
        if rest and isinstance(item, ScalarNode) and not item.is_null:
            # A host written as one word: its options go beside it.
            item = MappingNode(item.place, {"host": (item.place, item)})
        changed = _put(item, rest, value, place)
        return SequenceNode(node.place, (*node.items[:index], changed, *node.items[index + 1 :]))
    if isinstance(node, ScalarNode):
        if not node.is_null:
            raise _error(place, f"{quoted(key)} cannot be set inside the single value {quoted(node.text)}")
        node = MappingNode(place)
    at, old = node.entries.get(key, (place, ScalarNode(place, "", plain=True)))
    return MappingNode(node.place, {**node.entries, key: (at, _put(old, rest, value, place))})


def _error(place: SourceLocation, what: str, expected: str = "") -> ProfileErrors:
    return ProfileErrors([ProfileProblem.at(place, what, expected)])
