"""Hosts as a person types them: words between spaces or commas, ranges like `node[1-4]`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.errors import InputError
from runner.hosts.discovery.candidate import Candidate, Discovered, gather, spread

SOURCE = "typed"


def typed_hosts(text: str) -> Discovered:
    """Every host of a line of text."""
    problems: list[str] = []
    return gather(SOURCE, _hosts(text, problems), problems)


def _hosts(text: str, problems: list[str]) -> Iterator[Candidate]:
    for word in re.split(r"[\s,;]+", text.strip()):
        # An IPv6 address in brackets holds colons, but no range.
        try:
            yield from (Candidate(one, SOURCE) for one in (spread(word) if word else ()))
        except InputError as error:
            problems.append(error.sentence)
