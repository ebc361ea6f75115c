"""Processes: who they are, and that a number alone is not enough."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from disttui.runner.node import procs
from tests.command import ran, running
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


def test_identity_ends_with_the_process() -> None:
    child = subprocess.Popen(["sleep", "60"])
    who = procs.identity(child.pid)
    assert procs.alive(who)
    assert not procs.alive({**who, "start_time": (who["start_time"] or 0) - 1})
    assert not procs.alive({**who, "boot_id": "another boot"})
    assert not procs.alive({**who, "pid_namespace": "pid:[1]"})
    child.kill()
    wait_for(lambda: not procs.alive(who), "a zombie is not alive")
    child.wait()
    assert not procs.alive(who)
    assert not procs.alive({})


def test_a_name_of_parentheses_and_spaces_is_read(tmp_path: Path) -> None:
    odd = tmp_path / ") R 1 (x"
    odd.symlink_to("/bin/sleep")
    with running([str(odd), "60"]) as child:
        found = procs.read(child.pid)
        assert found is not None
        assert (found.ppid, found.pid) == (os.getpid(), child.pid)
        # The kernel shows a new program's arguments a moment after its start.
        wait_for(lambda: procs.command(child.pid) == f"{odd} 60", "the arguments are read")


def test_exit_status_of_a_zombie_is_read() -> None:
    child = subprocess.Popen(["sh", "-c", "exit 7"])
    fd = procs.pidfd(child.pid)
    if fd is None:
        pytest.skip("this kernel has no pidfd")
    assert select.select([fd], [], [], 30)[0]
    os.close(fd)
    found = procs.read(child.pid)
    assert found is not None
    assert found.dead
    assert os.waitstatus_to_exitcode(found.status) == 7
    child.wait()


def test_a_process_with_a_living_thread_is_not_dead() -> None:
    """Its first thread may have ended long ago."""
    source = (
        "import ctypes, platform, threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)  # exit, of this thread only\n"
    )
    with running([sys.executable, "-c", source]) as child:
        found = wait_for(lambda: (found := procs.read(child.pid)) and found.state == "Z" and found, "its first thread")
        assert not found.dead and found.dying
        alive = procs.read(os.getpid())
        assert alive and not alive.dying


def test_tag_and_descendants() -> None:
    child = subprocess.Popen(
        ["sh", "-c", "sleep 60 & sleep 60; true"], env={"DISTTUI_TAG": "run-a/3/2", "PATH": os.environ["PATH"]}
    )
    try:
        below = wait_for(lambda: len(found := procs.descendants(procs.table(), child.pid)) == 2 and found, "both")
        table = procs.table()
        wait_for(lambda: procs.tagged(procs.table(), "run-a", 3) == below | {child.pid}, "the tags")
        assert procs.tagged(table, "run-a", 33) == set()
        assert procs.tagged(table, "run", 3) == set()
        assert procs.tag(1) == ""
    finally:
        for pid in [child.pid, *procs.descendants(procs.table(), child.pid)]:
            os.kill(pid, 9)
        child.wait()


_CLAIMS = """
import ctypes, struct, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
size, none = 4 << 40, 0xffffffff
base = libc.mmap(None, ctypes.c_size_t(size), 1, 0x4022, -1, ctypes.c_long(0))  # private, anonymous, never reserved
at = open("/proc/self/stat").read().rpartition(")")[2].split()
code = [int(at[field - 3]) for field in (26, 27, 45, 46, 47)]
words = [base, base + size // 2, base + size // 2, base + size - 1]
places = struct.pack("11QQII", *code, libc.sbrk(0), int(at[25]), *words, 0, 0, none)
print(libc.prctl(35, 14, places, ctypes.c_ulong(len(places)), 0), flush=True)  # PR_SET_MM, PR_SET_MM_MAP
time.sleep(600)
"""
_LOOKS = """
import os, resource, sys
from disttui.runner.node import procs
from disttui.runner.node.serve.orphans import orphans
from disttui.runner.node.telemetry.sampler import Processes
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
pid = int(sys.argv[1])
print(procs.tag(pid), len(procs.environment(pid)), procs.arguments(pid)[:1], orphans(run="none-of-these"))
Processes().sample(0.0, {})
# Not ru_maxrss, which a new program has from the one that started it.
print(int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) < 300 << 10)
"""


def test_terabytes_that_a_process_claims_are_not_read() -> None:
    """Any user's process can say that its arguments and environment lie in 4 TB of memory that it never touched."""
    with running([sys.executable, "-c", _CLAIMS], stdout=subprocess.PIPE) as claims:
        assert claims.stdout is not None
        if claims.stdout.readline() != b"0\n":
            pytest.skip("this kernel refuses it")
        command = [sys.executable, "-c", _LOOKS, str(claims.pid)]
        done = ran(command)
        assert done.stdout.endswith("[''] []\nTrue\n"), (done.stdout[-500:], done.stderr[-500:])


def test_the_table_without_proc_agrees() -> None:
    own = procs._ps()[os.getpid()]
    assert own.ppid == os.getppid()
