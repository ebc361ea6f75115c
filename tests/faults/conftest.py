"""Fixtures for the faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.cluster.conftest import user
from tests.cluster.typed import User
from tests.faults.kit import Fault

__all__ = ["begin", "user"]


@pytest.fixture
def begin(user: Callable[..., User]) -> Callable[..., Fault]:
    """Start the counting job on a new cluster and wait until every rank counts: `begin(2)`, as Fault.begin.

    `cluster` are arguments of Cluster, `light` is that of User.
    """

    def make(n: int, *text: str, cluster: Mapping[str, Any] | None = None, light: bool = False, **keys: Any) -> Fault:
        return Fault.begin(user(n, light=light, **(cluster or {})), *text, **keys)

    return make
