"""Fixtures for tests that type `disttui` against a test cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.typed import User


@pytest.fixture
def user(cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Callable[..., User]]:
    """Make a user of a new cluster: `user(2)`, with the arguments of Cluster; `light`: as of User."""
    with contextlib.ExitStack() as stack:

        def make(n: int, *, light: bool = False, **options: object) -> User:
            one = User(cluster(n, **options), tmp_path, light=light)
            stack.callback(one.close)
            return one

        yield make
