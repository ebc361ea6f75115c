"""Fixtures that several files here use; another file may have its own of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.runs_kit import Make, making
from tests.unit.sshd import Place, Sshd


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Make]:
    """Make runs whose hosts are folders of this machine: `cluster(job, [1, 2])`."""
    yield from making(tmp_path)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A client's folder for ssh, with servers that end with the test."""
    here = Place(tmp_path)
    yield here
    here.close()


@pytest.fixture
def server(place: Place) -> Sshd:
    """A server that lets this user in."""
    return place.sshd("one")
