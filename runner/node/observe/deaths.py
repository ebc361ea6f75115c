"""Explains why a rank died: the end of its log, and evidence of the kernel's out-of-memory killer.

The log may end with the traceback of a rank that does not report it itself, the reason why native code aborted, or an
error message of the program. Sources on the killer: Documentation/admin-guide/cgroup-v2.rst (memory.events),
cgroup-v1/memory.rst (memory.oom_control), proc(5) (/proc/vmstat), Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Iterable, Iterator, TypedDict

from ...protocol.cause import is_consequence
from ...protocol.events import OomEvidence
from ...protocol.regular import last_text
from ..disk import read_text
from ..probe import cgroup

_LONGEST_MESSAGE = 8
"""Longest error message in lines; what follows is later output."""
_FIRST = "Traceback (most recent call last):"
# Python's report of a script that it cannot compile has no first line.
_NOT_COMPILED = re.compile(r'  File "[^"]{1,1000}", line \d{1,9}$')
_OF_TORCHRUN = "\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError"
# How accelerate and deepspeed report that a script has failed, which printed why before.
_OF_A_CHILD = " returned non-zero exit status 1."
# torchrun's log lines, which may separate a rank's traceback from its own: E1120 12:00:01.100 …, and before 2.1
_BY_TORCHRUN = re.compile(
    r"[IWEF]\d{4} \d\d:|(?:WARNING|ERROR|INFO):torch\.distributed\.|\[\d{4}-\d\d-\d\d [\d:,]{8,12}\] "
)
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*(?:<locals>\.[\w.]+)?(?:\(\w+\))?)(?::\s(.*))?$", re.DOTALL)
# torch puts [rank0]: before every line of an uncaught exception once a process group is up; torchrun --tee
# [default0]:, mpirun --tag-output [1,0]<stderr>: and Ray (Worker pid=9) before every line.
_PREFIX = re.compile(
    r"^(?:\[(?:rank|default)\d{1,6}\]: ?|\[\d{1,6},\d{1,6}\]<std(?:err|out)>: ?"
    r"|\(\w{1,60} pid=\d{1,9}(?:, ip=[\w.:]{1,45})?\) ?)+"
)
# What libraries print after Python's last exception.
_AFTERWARDS = re.compile(
    r"wandb:|\[W(?:\d{4})? [^\]]{1,200}\] |.{1,400}resource_tracker\.py:\d{1,6}: |\s+warnings\.warn\(.?resource_tracker"
    r"|huggingface/tokenizers: The current|To disable this warning, you can either:"
    r"|\t- (?:Avoid using `tokenizers`|Explicitly set the environment variable TOKENIZERS)"
    r"|[^|]{0,200}\d{1,3}%\|.{0,400}\[\d[\d:]{1,20}<.{1,60}\]$"  # a bar that tqdm draws as Python ends
)
# IPython's report: its first line, and a frame.
_BY_IPYTHON = re.compile(r"([A-Za-z_][\w.]{0,200}) {2,}Traceback \(most recent call last\)$")
_FRAME_OF_IPYTHON = re.compile(r"File (.{1,400}):(\d{1,7})(?:, in (.{1,200}))?$")
# loguru marks the frame that has caught the exception.
_CAUGHT_HERE = re.compile(r'^> (?=File ")', re.MULTILINE)
# libstdc++'s text before it aborts. After it comes torch's C++ stack, or the Python stacks that faulthandler prints.
_TERMINATED = re.compile(
    r"^terminate called (?:(without an active exception)|after throwing an instance of '([^'\n]+)')"
    r"(?:\n  what\(\):  (.*?)(?=\n(?:Exception raised from|Fatal Python error|frame #|terminate called )|\Z))?",
    re.DOTALL | re.MULTILINE,
)
# The format of argparse, click and most tools; absl's flags; Python if it cannot begin with a script or module.
_ERROR = re.compile(
    r"(?:^|: )(?:fatal |fatal flags parsing )?error: (?![-+]?(?:\d{0,9}\.)?\d{1,20}(?:e[-+]?\d{1,3})?%?(?:$|[,;|]))"
    r"|^\S{0,400}python[\d.]{0,8}: (?:can't open file |No module named |Error while finding )"
    r"|^\S{1,400}: \S{1,400}: version `\w{1,20}_[\d.]{1,20}' not found ",
    re.IGNORECASE,
)
# Hydra's last line, and the beginnings of its errors without a traceback.
_HYDRA = "Set the environment variable HYDRA_FULL_ERROR=1"
_OF_HYDRA = re.compile(
    r"In '.{1,200}': |Could not (?:override|append|delete|find|load) |Error (?:in call to target|locating target) "
    r"|Error merging |Key '.{1,200}' (?:is not in struct|not in )|You must specify |Multiple values for "
    r"|Ambiguous value for |(?:mismatched|extraneous) input |no viable alternative "
    r"|token recognition error |Primary config "
)
# Boxes of rich, as used by Typer and tyro: ╭─ Error ───╮, │ Missing argument 'DATA'. │, ╰───╯
_BOX = re.compile(r"╭─+ (.{1,80}?) ─*╮$")
_IN_BOX = re.compile(r"│(.*)│$")
_FRAME_IN_BOX = re.compile(r"(/.{1,400}|[\w./-]{1,400}):(\d{1,7}) in (.{1,200})")
# Colours, and the NUL that torch prints before the error of a crashed DataLoader worker.
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}m|\x00")
_LAST = 5
"""Lines at the end that are searched for an error; an earlier one did not end the program, unless its indented text
continues up to them."""
# A group has "  | " before its frames, and "  +-+------ 1 ------" between its exceptions.
_GROUP = re.compile(r"\s*\+ Exception Group Traceback \(most recent call last\):$")
_OF_A_GROUP = re.compile(r"ExceptionGroup: .{0,400} \(\d+ sub-exceptions?\)$")
_IN_A_GROUP = re.compile(r"\s+[|+]")
_END_OF_A_GROUP = re.compile(r"\s+\+-{9,}$")
_MEMBER = re.compile(r"\s*\+[-+]+(?: (?:\d+|\.\.\.) -+)?$")
_MOST_TRACEBACKS = 64
"""Tracebacks that are searched for the rank's own: each time the whole text before it is read."""
_LONGEST = 2000
_LONGEST_MARK = 200
_TAIL = 64 * 1024
"""Bytes of a log that are searched."""
_STACKS = re.compile(r"Exception raised from|Fatal Python error|frame #")
# faulthandler's names for these signals; ranks enable it.
_FATAL: dict[int, str] = {
    signal.SIGSEGV: "Segmentation fault", signal.SIGABRT: "Aborted", signal.SIGBUS: "Bus error",
    signal.SIGFPE: "Floating point exception", signal.SIGILL: "Illegal instruction",
}  # fmt: skip
_CURRENT = re.compile(r"^Current thread 0x[^\n]{1,200}\n((?:  [^\n]{1,1000}\n?){1,200})", re.MULTILINE)
_PLACE = re.compile(r'^  File "(.{1,400})", line (\d{1,7}) in (.{1,200})$', re.MULTILINE)
_NOT_OF_THE_USER = re.compile(r"/(?:(?:site|dist)-packages|lib(?:64)?/python[\d.]{1,8}|_disttui)/|^<")
# Reasons why native code aborts, as glibc, assert(), glog, libc++ and ROCm print them.
_GIVEN_UP = re.compile(
    r"double free or |(?:free|malloc|realloc|munmap_chunk)\(\): |corrupted |\*\*\* \w{1,20} (?:smashing|overflow)"
    r"|.{1,400}: Assertion .{1,400} failed\.?$|.{0,200}Check fail(?:ed|ure)|libc\+\+abi: |Memory access fault by GPU"
)
# glog's text after the check that failed.
_STACK_OF_GLOG = re.compile(r"\*\*\* Check failure stack trace: |\s+@\s+(?:0x[\da-f]+|\(nil\))(?:\s|$)")


class Words(TypedDict):
    """An exception's type and message."""

    type: str
    message: str
    traceback: str


def read(path: str, code: int) -> Words | None:
    """Return the exception if the log at `path` ends with one that explains this exit code."""
    find = {1: at_end, -signal.SIGABRT: terminated, -signal.SIGSEGV: terminated}.get(code)
    return find(_COLOURS.sub("", last_text(path, _TAIL))) if find else None


def said(path: str, code: int) -> str:
    """The error message at the end of the log at `path`; "" if it does not end with one."""
    text = _COLOURS.sub("", last_text(path, _TAIL))
    lines = [line.rstrip() for line in text.split("\n")[-50:] if line.strip()]
    while lines and _AFTERWARDS.match(lines[-1]):
        lines.pop()
    if code in (126, 127):
        return lines[-1].strip()[:_LONGEST] if lines else ""
    if set_apart := _in_box(lines) or _of_hydra(lines):
        return set_apart[:_LONGEST]
    errors = [index for index, line in enumerate(lines) if _ERROR.search(line)]
    start = next((index for index in errors if index >= len(lines) - _LAST), None)
    # jsonargparse continues with what it expected, indented.
    whole = (index for index in errors if all(line[0] in " \t" for line in lines[index + 1 :]))
    start = next(whole, start)
    return "" if start is None else "\n".join(map(str.strip, lines[start:]))[:_LONGEST]


def crash(path: str, code: int) -> str:
    """Why and where a signal ended native code, from the end of the log at `path`; "" if it does not say.

    The place is the innermost line of user code in faulthandler's stack: Segmentation fault in f (/w/a.py:3).
    """
    name = _FATAL.get(-code)
    lines = [_PREFIX.sub("", line) for line in _COLOURS.sub("", last_text(path, _TAIL)).split("\n")]
    text = "\n".join(lines)
    start = text.rfind("Fatal Python error: %s" % name)
    if name is None or (start < 0 and code != -signal.SIGABRT):
        return ""
    lines = [line for line in (text[:start] if start >= 0 else text).split("\n") if line.strip()]
    before = [line for line in lines if not _STACK_OF_GLOG.match(line)][-_LONGEST_MESSAGE:]
    why = next((line.strip() for line in reversed(before) if _GIVEN_UP.match(line)), name if start >= 0 else "")
    thread = _CURRENT.search(text, start) if start >= 0 else None
    places = _PLACE.findall(thread[1]) if thread else []
    place = next((one for one in places if not _NOT_OF_THE_USER.search(one[0])), next(iter(places), None))
    return why[:_LONGEST] + (" in %s (%s:%s)" % (place[2], place[0], place[1]) if place else "")


def _in_box(lines: list[str]) -> str:
    """The text, after its title, of the box that the lines end with."""
    start = next((index for index in reversed(range(len(lines))) if _BOX.match(lines[index])), None)
    if start is None or not lines[-1].startswith("╰"):
        return ""
    title, inside = _BOX.match(lines[start]), map(_IN_BOX.match, lines[start + 1 : -1])
    texts = [found[1].strip() for found in inside if found and found[1].strip(" ─")]
    return f"{title[1]}: {' '.join(texts)}" if title and texts and "Traceback" not in title[1] else ""


def _of_hydra(lines: list[str]) -> str:
    """Hydra's own error, which it prints in place of a traceback."""
    if not lines or not lines[-1].startswith(_HYDRA):
        return ""
    start = next((index for index, line in enumerate(lines) if _OF_HYDRA.match(line)), len(lines))
    return "\n".join(map(str.strip, lines[start:-1][:_LONGEST_MESSAGE]))


def terminated(text: str) -> Words | None:
    """The uncaught C++ exception, such as one of NCCL's watchdog; it has no Python traceback.

    A fault while Python then prints its stacks turns the SIGABRT into a SIGSEGV.
    """
    found = None
    for found in _TERMINATED.finditer(text):  # noqa: B007
        pass
    if found is None:
        return None
    message, rest = (found[3] or found[1] or "").strip(), text[found.end() :].lstrip()
    # Ignore that of another process, which ended long before this rank.
    if message.count("\n") > _LONGEST_MESSAGE or (rest.count("\n") > _LONGEST_MESSAGE and not _STACKS.match(rest)):
        return None
    return {"type": found[2] or "std::terminate", "message": message, "traceback": ""}


def at_end(text: str) -> Words | None:
    """The uncaught Python exception. Lines that libraries print after it at interpreter exit begin with a [mark]."""
    while (ignored := text.rfind("\nException ignored in")) >= 0 and _FIRST in text[ignored:]:
        text = text[:ignored]  # ignore exceptions in objects that Python destroys at exit
    if (failed := text.rfind(_OF_TORCHRUN)) >= 0:  # it says only that a rank has failed, which printed why before
        return _of_ranks(text[: text.rfind(_FIRST, 0, failed)].split("\n"))
    found = _last(text)
    if found and found["type"].endswith("CalledProcessError") and found["message"].endswith(_OF_A_CHILD):
        return _last(text[: text.rfind(_FIRST)]) or found
    return found


def _of_ranks(lines: list[str]) -> Words | None:
    """The exception of ranks that print into one log; the first that does not only report another rank's end."""
    ranks: dict[str, list[str]] = {}
    for line in lines:
        if not _BY_TORCHRUN.match(line):
            mark = _PREFIX.match(line)
            ranks.setdefault(mark[0].strip() if mark else "", []).append(line)
    texts = ["\n".join(one) for one in ranks.values()]
    return _first_own(words for text in (_shortened(texts[0]) if len(texts) == 1 else texts) if (words := _last(text)))


def _shortened(text: str) -> Iterator[str]:
    """The text, then without its last traceback, and so forth: before torch 2.2 the lines of ranks are not marked."""
    yield text
    for _ in range(_MOST_TRACEBACKS):
        if (start := text.rfind(_FIRST)) < 0:
            return
        text = text[:start]
        yield text


def _first_own(found: Iterable[Words]) -> Words | None:
    """The first exception that does not only report the end of another rank, else the first."""
    first = None
    for one in found:
        if not is_consequence({"kind": "exception", "type": one["type"], "message": one["message"]}):
            return one
        first = first or one
    return first


def _last(text: str) -> Words | None:
    """The exception that a text ends with."""
    lines = _unmarked([line.rstrip() for line in _CAUGHT_HERE.sub("  ", text).split("\n")])
    plain = [_PREFIX.sub("", line) for line in lines]
    while plain and (not plain[-1] or _AFTERWARDS.match(plain[-1]) or plain[-1].startswith(_HYDRA)):
        lines.pop()
        plain.pop()
    groups = [index for index, line in enumerate(plain) if _GROUP.match(line) and line.startswith("  +")]
    starts = [index for index, line in enumerate(plain) if line == _FIRST]
    if groups and (not starts or starts[-1] < groups[-1]):
        return _in_group(plain[groups[-1] :])
    starts = starts or [index for index, line in enumerate(plain) if _NOT_COMPILED.match(line)][-1:]
    if not starts:
        return _in_rich_box(lines) or _by_ipython(plain)
    start = starts.pop()
    frames = next((index for index in range(start + 1, len(plain)) if plain[index][:1] not in ("", " ")), None)
    if frames is None:
        return None
    marked = bool(_PREFIX.match(lines[start]))
    end = frames + 1
    while end < len(lines) and (_PREFIX.match(lines[end]) if marked else not lines[end].startswith("[")):
        end += 1
    while not plain[end - 1]:
        end -= 1
    found = _EXCEPTION.match("\n".join(plain[frames:end]))
    # A message may include a traceback of its own, or an indented list of what is missing.
    length = sum(line[:1] not in ("", " ", "\t") for line in plain[frames:end])
    most = 8 * _LONGEST_MESSAGE if "ValidationError: " in plain[frames] else _LONGEST_MESSAGE  # a line for each field
    if not found or length > most or any(line and line[0] != "[" for line in lines[end:]):
        return None
    while starts and _leads_on(plain[:start]):
        start = starts.pop()
    return {"type": found[1], "message": found[2] or "", "traceback": "\n".join(plain[start:end])}


def _unmarked(lines: list[str]) -> list[str]:
    """The lines, without what a logger, launcher or container wrote before each line of the last traceback."""
    start = max((at for at, line in enumerate(lines) if _PREFIX.sub("", line).endswith(_FIRST)), default=None)
    mark = "" if start is None else _PREFIX.sub("", lines[start])[: -len(_FIRST)]
    if start is None or not mark.strip(" |+") or "Exception Group" in mark or len(mark) > _LONGEST_MARK:
        return lines
    # The time and other numbers differ from line to line.
    alike, begins_alike = (
        re.compile(r"\d+".join(map(re.escape, re.split(r"\d+", one)))) for one in (mark, mark.split()[0])
    )
    plain = [_PREFIX.sub("", line) for line in lines]
    if not alike.match("".join(plain[start + 1 : start + 2])):
        return [*lines[:start], _FIRST, *lines[start + 1 :]]  # all of it is one message of the logger
    after = next((at for at in range(start, len(plain)) if plain[at] and not alike.match(plain[at])), len(plain))
    rest = lines[after:]
    kept = [alike.sub("", line, count=1) for line in plain[:after]]
    # The same logger may print a few more lines; other output shows that the program continued.
    farewell = len(rest) <= _LONGEST_MESSAGE and all(
        not line or line[0] == "[" or begins_alike.match(line) for line in rest
    )
    return kept if farewell else lines


def _in_rich_box(lines: list[str]) -> Words | None:
    """The exception below a traceback drawn by rich."""
    texts = [line for line in lines if line and not line.startswith(("[rank", "[W"))]
    ends = [index for index, line in enumerate(texts) if line.startswith("╰─")]
    start = next((index for index in reversed(range(len(texts))) if _BOX.match(texts[index])), None)
    if start is None or not ends or ends[-1] < start or "Traceback" not in texts[start]:
        return None
    found = _EXCEPTION.match("\n".join(texts[ends[-1] + 1 :]))
    if not found or len(texts) - ends[-1] > _LONGEST_MESSAGE:
        return None
    inside = (_IN_BOX.match(line) for line in texts[start + 1 : ends[-1]])
    places = (_FRAME_IN_BOX.fullmatch(line[1].strip()) for line in inside if line)
    frames = [f'  File "{place[1]}", line {place[2]}, in {place[3]}' for place in places if place]
    return {"type": found[1], "message": found[2] or "", "traceback": "\n".join([_FIRST, *frames, found[0]])}


def _by_ipython(lines: list[str]) -> Words | None:
    """The exception in IPython's report, which shows the source around each frame."""
    start = max((index for index, line in enumerate(lines) if _BY_IPYTHON.match(line)), default=None)
    begun = _BY_IPYTHON.match(lines[start]) if start is not None else None
    if start is None or begun is None:
        return None
    last = max((index for index, line in enumerate(lines) if line.startswith(begun[1])), default=start)
    found = _EXCEPTION.match("\n".join(lines[last:]))
    if last == start or not found or len(lines) - last > _LONGEST_MESSAGE:
        return None
    places = (_FRAME_OF_IPYTHON.match(line) for line in lines[start:last])
    frames = [f'  File "{place[1]}", line {place[2]}, in {place[3] or "<module>"}' for place in places if place]
    return {"type": found[1], "message": found[2] or "", "traceback": "\n".join([_FIRST, *frames, *lines[last:]])}


def _in_group(lines: list[str]) -> Words | None:
    """The exception inside an uncaught ExceptionGroup; the first that does not only report another rank's end."""
    # Python indents only the first line of a message.
    ends = [index for index, line in enumerate(lines, 1) if _END_OF_A_GROUP.match(line)]
    end = ends[-1] if ends else next((at for at, line in enumerate(lines) if not _IN_A_GROUP.match(line)), len(lines))
    if any(line and line[0] != "[" for line in lines[end:]):
        return None
    parts: list[list[str]] = [[]]
    for line in lines[:end]:
        if _MEMBER.match(line):
            parts.append([])
        else:
            parts[-1].append(re.sub(r"^\s*\| ?", "", line))
    found: list[Words] = []
    place: list[str] = []
    for part in parts:
        # Its frames may be followed by more lines of its message, and its notes.
        begin = max((index for index, line in enumerate(part) if line == _FIRST), default=-1)
        last = next((index for index, line in enumerate(part) if index > begin and line[:1].isalpha()), None)
        frames = [line for line in part if line.startswith("  ") and not _GROUP.match(line)]
        if any(map(_GROUP.match, part)) or (part and _OF_A_GROUP.search(part[-1])):
            place = frames or place
        elif last is not None and (one := _EXCEPTION.match("\n".join(part[last:]))):
            traceback = "\n".join([_FIRST, *(frames or place), *part[last:]])
            found.append({"type": one[1], "message": one[2] or "", "traceback": traceback})
    return _first_own(found)


def _leads_on(before: list[str]) -> bool:
    """Whether an exception that follows these lines belongs to the one before it."""
    return next((line for line in reversed(before) if line), "").startswith(_CHAINED)


_KMSG = "/dev/kmsg"
_KILLED = re.compile(r"(out of memory|oom).*?[Kk]illed process (\d+)")


class OomWatch:
    """Compares counters of killed processes with their values at the beginning of the attempt.

    Args:
        proc: The path of /proc.
        kmsg: The kernel's log, which root can read, and others if kernel.dmesg_restrict is 0.
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
        """Evidence of the killer since the beginning or the last call, or None.

        Args:
            pid: The process that has died. The kernel's pids differ from those inside a container, so that its line
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
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _counters(self) -> dict[str, int]:
        found = {}
        group = cgroup.oom_kills(self._proc)
        if group is not None:
            found["group"] = group
        machine = re.search(r"^oom_kill (\d+)$", read_text(os.path.join(self._proc, "vmstat")), re.MULTILINE)
        if machine:
            found["machine"] = int(machine.group(1))
        return found

    def _words(self, pid: int | None) -> str:
        """The kernel's line about killing this process for memory, from the new part of its log."""
        words = ""
        for _ in range(5000 if self._log is not None else 0):
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
