"""Evidence of the kernel's out-of-memory killer: counters before and after a death, and the kernel's log.

Sources: Documentation/admin-guide/cgroup-v2.rst (memory.events), cgroup-v1/memory.rst (memory.oom_control), proc(5)
(/proc/vmstat), Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import os
import re

from ...protocol.events import OomEvidence
from ..probe import cgroup

_KMSG = "/dev/kmsg"
_MOST_RECORDS = 5000
_KILLED = re.compile(r"(out of memory|oom).*?[Kk]illed process (\d+)")


class OomWatch:
    """Compares the counters of killed processes with those at the beginning of the attempt.

    Args:
        proc: Where /proc is.
        kmsg: The kernel's log; readable for root, and where kernel.dmesg_restrict is 0.
    """

    def __init__(self, proc: str = "/proc", kmsg: str = _KMSG) -> None:
        self._proc = proc
        self._before = self._counters()
        self._log: int | None = None
        try:
            self._log = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)
        except OSError:
            pass  # not readable: only the counters are used

    def evidence(self, pid: int | None) -> OomEvidence | None:
        """Evidence of the killer since the beginning or the last call, None if there is none.

        Args:
            pid: Of the process that has died. The kernel's pids differ from those inside a container, so that its line
                may be missed, but never matches a wrong process.

        Returns:
            `group` and `machine`: processes killed in this run's control group and on the machine; `kernel`:
            the kernel's line; `limit`: bytes that the control groups allow.
        """
        now, before = self._counters(), self._before
        self._before = now
        found = OomEvidence()
        if now.get("group", 0) > before.get("group", 0):
            found["group"] = now["group"] - before["group"]
        if now.get("machine", 0) > before.get("machine", 0):
            found["machine"] = now["machine"] - before["machine"]
        words = self._words(pid)
        if words:
            found["kernel"] = words
        limit = cgroup.memory_limit(self._proc) if found.get("group") else None
        if limit:
            found["limit"] = limit
        return found or None

    def close(self) -> None:
        """Close the kernel's log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _counters(self) -> dict[str, int]:
        found = {}
        group = cgroup.oom_kills(self._proc)
        if group is not None:
            found["group"] = group
        try:
            with open(os.path.join(self._proc, "vmstat"), encoding="ascii") as file:
                machine = re.search(r"^oom_kill (\d+)$", file.read(), re.MULTILINE)
        except (OSError, ValueError):
            machine = None
        if machine:
            found["machine"] = int(machine.group(1))
        return found

    def _words(self, pid: int | None) -> str:
        """The kernel's line about killing this process for memory, from the new part of its log."""
        words = ""
        for _ in range(_MOST_RECORDS if self._log is not None else 0):
            try:
                record = os.read(self._log or 0, 8192).decode("utf-8", "replace")
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError:
                break
            text = record.partition(";")[2].split("\n", 1)[0]
            killed = _KILLED.search(text)
            if killed and int(killed.group(2)) == pid:
                words = text[:300]
            if not record:
                break
        return words
