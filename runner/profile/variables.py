"""`${var:steps=1000}`: values that `--set var.steps=500`, or `var:` in the profile or in one that extends it, give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from operator import is_

from runner.profile.nodes import MAX_SIZE, MappingNode, Node, ScalarNode, SequenceNode
from runner.profile.problems import ProfileErrors, ProfileProblem, near_of_few, quoted
from runner.profile.references import MEANT

_VARIABLE = re.compile(r"\$\{var:([A-Za-z_][A-Za-z0-9_]*)(=[^{}]*)?\}")
_OPENED = re.compile(r"\$\{var:[A-Za-z_]")
"""What is meant as one; a shell's own `${var:-x}` and `${var:0:3}` are none."""


def filled(root: MappingNode, problems: list[ProfileProblem]) -> MappingNode:
    """The tree with every variable replaced by its value, and without `var`.

    Raises:
        ProfileErrors: The values make the profile too large.
    """
    place, given = root.entries.get("var", (None, None))
    if place is not None and not isinstance(given, MappingNode):
        problems.append(ProfileProblem.at(place, "var: no mapping", "expected names and values, like {steps: 1000}"))
    values = _values(given, problems) if isinstance(given, MappingNode) else {}
    filler = _Filler(values, problems)
    entries = {key: (at, filler.fill(node)) for key, (at, node) in root.entries.items() if key != "var"}
    if isinstance(given, MappingNode):
        used = sorted(filler.used)
        for name, (at, _) in given.entries.items():
            if name in values and name not in filler.used:
                meant = near_of_few(name, used, problems)
                cure = f"did you mean {meant!r}?" if meant else f"expected ${{var:{name}}} in a value"
                problems.append(ProfileProblem.at(at, f"nothing uses the variable {quoted(name)}", cure))
    return MappingNode(root.place, entries)


def _values(given: MappingNode, problems: list[ProfileProblem]) -> dict[str, ScalarNode]:
    found = {}
    for name, (at, node) in given.entries.items():
        if not isinstance(node, ScalarNode):
            problems.append(ProfileProblem.at(at, f"the variable {quoted(name)} is no single value", "expected text"))
        elif _OPENED.search(node.text):
            problems.append(ProfileProblem.at(node.place, "a variable in the value of another", "write the value out"))
        else:
            found[name] = node
    return found


class _Filler:
    def __init__(self, values: Mapping[str, ScalarNode], problems: list[ProfileProblem]) -> None:
        self.used: set[str] = set()
        self._values, self._problems = values, problems
        self._room = MAX_SIZE

    def fill(self, node: Node) -> Node:
        """The same with values in the place of variables."""
        if isinstance(node, SequenceNode):
            items = tuple(map(self.fill, node.items))
            return node if all(map(is_, items, node.items)) else replace(node, items=items)
        if isinstance(node, MappingNode):
            entries = {key: (at, self.fill(value)) for key, (at, value) in node.entries.items()}
            same = all(entries[key][1] is value for key, (_, value) in node.entries.items())
            return node if same else replace(node, entries=entries)
        return self._scalar(node) if "${var:" in node.text else node

    def _scalar(self, node: ScalarNode) -> ScalarNode:
        text = _VARIABLE.sub(lambda match: self._value(match, node), node.text)
        self._room -= len(text)
        if self._room < 0:
            raise ProfileErrors([ProfileProblem.at(node.place, "with its variables the profile is larger than 1 MiB")])
        if _OPENED.search(_VARIABLE.sub("", node.text)):
            what = "this is no variable"
            self._problems.append(ProfileProblem.at(node.place, what, "expected ${var:NAME} or ${var:NAME=DEFAULT}"))
        # What a value brings in counts as if it were written here.
        reference = node.reference or (node.place if MEANT.search(text) else None)
        return replace(node, text=text, reference=reference)

    def _value(self, match: re.Match[str], node: ScalarNode) -> str:
        name, default = match.groups()
        self.used.add(name)
        if name in self._values:
            return self._values[name].text
        if default is None:
            what = f"the variable {quoted(name)} has no value"
            self._problems.append(
                ProfileProblem.at(node.place, what, f"expected --set var.{name}=…, or a default: ${{var:{name}=…}}")
            )
            return ""
        return str(default[1:])
