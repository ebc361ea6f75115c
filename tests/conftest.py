"""Fixtures for all tests, and the rule that CI may not skip the tests on real hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator

import pytest

from tests.cluster import Cluster, unavailable

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a script: all that the tests start would be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")


@pytest.fixture(scope="session")
def requires_cluster() -> None:
    """Skip where no test cluster can be made."""
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def cluster(requires_cluster: None) -> Iterator[Callable[..., Cluster]]:
    """Make clusters that end with the test: `cluster(3)`, with the arguments of Cluster."""
    with contextlib.ExitStack() as stack:
        yield lambda n, **options: stack.enter_context(Cluster(n, **options))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whatever needs the cluster."""
    for item in items:
        if "requires_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped cluster test into a failure in CI: there a skip would hide half of the promises."""
    report = yield
    if _IN_CI and report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("cluster"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI may not do: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail rather than wait for ever for a thread that a test has left: Python joins them all at its end."""
    before = set(threading.enumerate())
    yield
    left = _threads_left(before)
    if left:
        pytest.fail("a test has left threads that do not end:\n" + "\n".join(map(_described, left)), pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """End this process all the same: what is left has been reported by the fixture."""
    if _threads_left({threading.main_thread()}):
        sys.stdout.flush()
        os._exit(1)


def _threads_left(before: set[threading.Thread]) -> list[threading.Thread]:
    others = [one for one in threading.enumerate() if one not in before and not one.daemon]
    for thread in others:
        thread.join(10)
    return [one for one in others if one.is_alive()]


def _described(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return f"{thread.name}:\n" + ("".join(traceback.format_stack(frame)) if frame else "")
