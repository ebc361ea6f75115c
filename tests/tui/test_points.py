"""Words in points: whatever a host says in them stays words."""

from __future__ import annotations

from disttui.tui.widgets.points import Point


def test_escape_sequences_are_stripped_from_a_point() -> None:
    point = Point("no torch in \x1b]52;c;ZXZpbA==\x07/opt/\x1b[2Jpython", mark="✗ ")
    (line,) = point.lines(60)
    assert line.plain == "✗ no torch in /opt/python" == point.plain
