"""Fixtures for all tests, what tests need that a machine may lack, and the rule that CI may skip none of these."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from disttui.runner.text import masking
from tests import frameworks
from tests.cluster import Cluster, unavailable

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a script: all that the tests start would be deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine may stall in any example; what takes longer than this is slow by itself.
settings.register_profile("disttui", deadline=5000)
settings.load_profile("disttui")

_PROGRAMS = {
    "git": ("git", "git"),
    "tmux": ("tmux", "tmux"),
    "openmpi": ("mpirun", "openmpi-bin"),
    "slurm": ("/usr/sbin/slurmctld", "slurm-wlm munge"),
    "oath": ("oathtool", "libpam-oath oathtool"),
    "pkcs11": ("softhsm2-util", "softhsm2 opensc"),
    "kerberos": ("/usr/sbin/krb5kdc", "krb5-kdc krb5-user krb5-admin-server"),
}
"""Marker → the program that its tests need, and the packages that bring it."""

_MOST_RETRIED = 3

SOAK = Path(__file__).with_name("soak.txt")
"""Names of tests, or how they begin, each with the test that stands for it in `make test`."""

_KEPT = re.compile(r"PATH|HOME|TMPDIR|CI|(DISTTUI|PYTEST|PIP|UV|SSL|OPENBLAS)_\w+|PYTHON(\w+)|LD_LIBRARY_PATH")
"""What tests see of the environment they are run in: nothing that only a login, a terminal or a user sets."""

_IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")


def pytest_configure() -> None:
    """Make the environment the same in a terminal, in a container without a login and in CI.

    And find python3 past pyenv's shell script, which takes 0.1 s of CPU time of each of some hundred starts.
    """
    for name in os.environ:
        if not _KEPT.fullmatch(name):
            del os.environ[name]
    os.environ["LANG"] = "C.UTF-8"
    found = shutil.which("python3")
    if found and Path(found).parent.name == "shims":
        words = [found, "-c", "import sys; print(sys.executable)"]
        asked = subprocess.run(words, capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            os.environ["PATH"] = f"{Path(asked.stdout.strip()).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove at the end what killed commands and torchrun leave in the folder of temporary files."""
    tmp_path_factory.getbasetemp()  # pytest's own stays where it is, to be looked at
    with tempfile.TemporaryDirectory(prefix="disttui-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)
        before, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), folder
        tempfile.tempdir = folder
        yield
        tempfile.tempdir = None
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before


@pytest.fixture(scope="session", autouse=True)
def leases_of_the_tests(temporary_files: None) -> Path:
    """Keep what runs lease in a folder of these tests: others that run on this machine must not be in their way."""
    folder = Path(tempfile.mkdtemp(prefix="leases-"))
    folder.chmod(0o1777)
    os.environ["DISTTUI_LEASES"] = str(folder)
    return folder


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
    """Mark what needs the cluster or is for `make soak`, and skip what needs root or torch where there is none."""
    lacks = _lacks()
    soak = tuple(line.partition(" # ")[0] for line in SOAK.read_text().splitlines() if line[:1] != "#")
    for item in items:
        if item.nodeid.startswith(soak):
            item.add_marker("soak")
        if "requires_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
            item.add_marker(pytest.mark.flaky(reruns=1))  # of a busy machine; listed and counted at the end
        for marker, reason in lacks.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _lacks() -> dict[str, str]:
    """Marker → why no test with it can run here."""
    lacks = {}
    if os.geteuid() != 0:
        lacks["root"] = "only root can act as another user, mount a file system or make a network"
    if importlib.util.find_spec("torch") is None:
        lacks["torch"] = "torch is not installed: pip install -e '.[train]'"
    if not frameworks.PYTHON.exists():
        lacks["frameworks"] = "accelerate, transformers, lightning and deepspeed are not installed: make .venv/dev"
    for marker, (program, package) in _PROGRAMS.items():
        if shutil.which(program) is None:
            lacks[marker] = f"{program} is not installed; on Debian and Ubuntu: apt install {package}"
    return lacks


def pytest_collection_finish() -> None:
    """Collect garbage rarely, and never look through what all tests share: both took a quarter of their CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that passed only when they were run again, with the reason of their first failure."""
    retried = terminalreporter.stats.get("rerun", [])
    if retried:
        terminalreporter.section(f"run again: {len(retried)}, at most {_MOST_RETRIED}")
    for report in retried:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message if crash else report.longreprtext
        terminalreporter.write_line(f"{report.nodeid} ({report.when}): {(reason.splitlines() or ['?'])[0]}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session that had to run many tests again: that is no noise any more."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and len(reporter.stats.get("rerun", [])) > _MOST_RETRIED and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a test that is skipped for what CI must have into a failure: a skip would hide half of the promises."""
    report = yield
    needs = any(item.get_closest_marker(marker) for marker in ("cluster", "root", "torch", "frameworks", *_PROGRAMS))
    if _IN_CI and report.skipped and not hasattr(report, "wasxfail") and needs:
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI may not do: {report.longrepr}"
    return report


@pytest.fixture
def patience() -> Iterator[None]:
    """An end for what would wait for ever."""

    def give_up(*_: object) -> None:
        raise AssertionError("it waits for a pipe that nobody writes into")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(150)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def no_secret_is_known() -> Iterator[None]:
    """What a test has resolved as a secret is masked in its own words alone."""
    yield
    masking.forget_all()


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
