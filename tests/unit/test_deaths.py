"""Tracebacks that logs end with: found where they are the end, and not where the rank lived on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from disttui.runner.diagnose.frames import frames
from disttui.runner.node.observe import deaths
from disttui.runner.node.rank import run_main
from tests.command import ran
from tests.counting import counted
from tests.files import new_file

_TORCH = "[W1120 12:00:00.1 ProcessGroup.cpp:1] Warning: destroy_process_group() was not called"


def log(code: str) -> str:
    """What a Python that runs this prints on both streams."""
    done = ran([sys.executable, "-c", code])
    return done.stdout + done.stderr


def test_an_uncaught_exception() -> None:
    text = log("print('step 1')\ndef f():\n    raise ValueError('boom: x')\nf()")
    found = deaths.at_end(text)
    assert found and (found["type"], found["message"]) == ("ValueError", "boom: x")
    assert found["traceback"] == text[text.index("Traceback") :].rstrip()


def test_one_without_a_message_and_one_of_several_lines() -> None:
    found = deaths.at_end(log("assert False"))
    assert found and (found["type"], found["message"]) == ("AssertionError", "")
    found = deaths.at_end(log("raise RuntimeError('one\\n\\n  two')"))
    assert found and found["message"] == "one\n\n  two" and found["traceback"].endswith("two")


def test_traceback_includes_its_chain_but_no_older_one() -> None:
    code = """
import traceback
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
try:
    open("/no/such/file")
except OSError as error:
    raise KeyError("config") from error
"""
    found = deaths.at_end(log(code))
    assert found and found["type"] == "KeyError"
    assert "FileNotFoundError" in found["traceback"] and "direct cause" in found["traceback"]
    assert "ZeroDivisionError" not in found["traceback"]


def test_a_class_inside_a_function() -> None:
    found = deaths.at_end(log("def f():\n  class E(Exception): pass\n  raise E('x: y')\nf()"))
    assert found and (found["type"], found["message"]) == ("f.<locals>.E", "x: y")


@pytest.mark.parametrize(
    ("log", "code", "said"),
    [
        pytest.param(
            "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --nope\n",
            2,
            "train.py: error: unrecognized arguments: --nope",
            id="argparse",
        ),
        pytest.param(
            "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: No such option: --nope\n",
            2,
            "Error: No such option: --nope",
            id="click",
        ),
        pytest.param(
            "t.py: error: no --x\n[W1120 12:00:00.1 ProcessGroup.cpp:1] Warning: destroy_process_group()\n",
            2,
            "t.py: error: no --x",
            id="before a warning of torch",
        ),
        pytest.param(
            "/usr/bin/python3.11: can't open file '/w/a.py': [Errno 2] No such file or directory\n",
            2,
            "/usr/bin/python3.11: can't open file '/w/a.py': [Errno 2] No such file or directory",
            id="no script",
        ),
        pytest.param("python: No module named pkg.train\n", 1, "python: No module named pkg.train", id="no module"),
        pytest.param(
            "disttui: accelerate: No such file or directory\n",
            127,
            "disttui: accelerate: No such file or directory",
            id="a command that is not there",
        ),
        pytest.param(
            'usage: a.py [-h]\nerror: Parser key "model_config":\n  Does not validate against any of the types\n'
            "  Types: [Config, None]\n  Errors:\n    - Expected a Config\n    - Expected None\n"
            "  Given value type: <class 'str'>\n  Given value: x\n",
            2,
            'error: Parser key "model_config":\nDoes not validate against any of the types\nTypes: [Config, None]\n'
            "Errors:\n- Expected a Config\n- Expected None\nGiven value type: <class 'str'>\nGiven value: x",
            id="jsonargparse",
        ),
        pytest.param(
            "\x1b[1;35mtrain.py\x1b[0m: \x1b[1;31merror: \x1b[0munrecognized arguments: --nope\n",
            2,
            "train.py: error: unrecognized arguments: --nope",
            id="argparse in colours",
        ),
        pytest.param(
            "FATAL Flags parsing error: Unknown command line flag 'nope'.\nPass --helpshort or --helpfull.\n",
            1,
            "FATAL Flags parsing error: Unknown command line flag 'nope'.\nPass --helpshort or --helpfull.",
            id="absl",
        ),
        pytest.param(
            "Usage: train.py [OPTIONS] DATA\n╭─ Error ────────────╮\n│ Missing argument   │\n│ 'DATA'.            │\n"
            "╰────────────────────╯\n",
            2,
            "Error: Missing argument 'DATA'.",
            id="typer",
        ),
        pytest.param(
            "step 1\nIn 'config': Could not find 'model/foo'\n\nAvailable options in 'model':\n\tbase\n"
            "Config search path:\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
            1,
            "In 'config': Could not find 'model/foo'\nAvailable options in 'model':\nbase\nConfig search path:",
            id="hydra, no such file",
        ),
        pytest.param(
            "Could not override 'o.lrr'.\nTo append to your config use +o.lrr=0.1\nKey 'lrr' is not in struct\n\n"
            "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
            1,
            "Could not override 'o.lrr'.\nTo append to your config use +o.lrr=0.1\nKey 'lrr' is not in struct",
            id="hydra, no such key",
        ),
        pytest.param(
            "Error executing job with overrides: []\nError in call to target 'torch.optim.adam.Adam':\n"
            'TypeError("unexpected keyword")\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a trace.\n',
            1,
            "Error in call to target 'torch.optim.adam.Adam':\nTypeError(\"unexpected keyword\")",
            id="hydra, a call",
        ),
        pytest.param(
            "python: /lib/libc.so.6: version `GLIBC_2.38' not found (required by python)\n",
            1,
            "python: /lib/libc.so.6: version `GLIBC_2.38' not found (required by python)",
            id="an older glibc",
        ),
        pytest.param("step 1 loss 2.0\nerror: 0.25\nstep 2\n3\n4\n5\n6\n", 3, "", id="long before"),
        pytest.param("epoch 5: error: 0.25\nepoch 6: error: 1\n", 3, "", id="a metric called error"),
        pytest.param("t.py: error: 2 files are missing\n", 3, "t.py: error: 2 files are missing", id="two files"),
        pytest.param("step 1 loss 2.0\n", 3, "", id="nothing said"),
        pytest.param("", 127, "", id="no log"),
    ],
)
def test_an_error_in_the_programs_own_words(tmp_path: Path, log: str, code: int, said: str) -> None:
    path = new_file(tmp_path / "rank-0.log", log)
    assert deaths.said(str(path), code) == said


RAISED = """\
def f():
  raise KeyError('a')
found = []
for one in (echo, f):
  try: one()
  except Exception as e: found.append(e)
"""
GROUPS = [
    ("raise ExceptionGroup('g', [FileNotFoundError(2, 'No such file or directory', '/data/a.bin')])",
     ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/a.bin'", 1)),
    (f"def echo(): raise ConnectionResetError('Connection closed by peer')\n{RAISED}raise ExceptionGroup('g', found)",
     ("KeyError", "'a'", 3)),
    ("raise ExceptionGroup('g', [ConnectionResetError('Connection closed by peer')])",
     ("ConnectionResetError", "Connection closed by peer", 1)),
    ("raise ExceptionGroup('g', [ExceptionGroup('h', [ValueError('x')])])", ("ValueError", "x", 1)),
    ("raise ExceptionGroup('g', [ExceptionGroup('h', [ValueError('x\\ny')]), OSError('z')])",
     ("ValueError", "x\ny", 1)),
    ("try: 1 / 0\nexcept Exception as e:\n  raise ExceptionGroup('g', [ValueError('v')]) from e",
     ("ValueError", "v", 3)),
    ("try:\n  raise ExceptionGroup('g', [ValueError('v')])\nexcept Exception as e:\n  raise OSError('o') from e",
     ("OSError", "o", 4)),
    ("import asyncio\nasync def a(): raise OSError(28, 'No space left on device')\nasync def main():\n"
     "  async with asyncio.TaskGroup() as g: g.create_task(a())\nasyncio.run(main())",
     ("OSError", "[Errno 28] No space left on device", 2)),
]  # fmt: skip


@pytest.mark.skipif(sys.version_info < (3, 11), reason="ExceptionGroup is of Python 3.11")
@pytest.mark.parametrize(("code", "expected"), GROUPS)
def test_the_exception_inside_a_group_is_the_cause(code: str, expected: tuple[str, str, int]) -> None:
    """By the log of a command, and by the rank itself."""
    found = deaths.at_end(log(code))
    with pytest.raises(BaseException) as caught:
        exec(compile(code, "user.py", "exec"), {})
    for words in (found, run_main._describe(caught.value)):
        assert words
        assert (words["type"], words["message"], frames(words["traceback"])[-1].line) == expected


BAD = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in f\nValueError: bad\n'
RICH = """╭──── Traceback (most recent call last) ────╮
│ /w/a.py:3 in f                            │
│ ❱ 3     raise ValueError('bad')           │
╰───────────────────────────────────────────╯
ValueError: bad
"""
LOGURU = """2026-01-02 03:04:05.678 | ERROR    | __main__:<module>:20 - An error has been caught in function '<module>':
Traceback (most recent call last):

> File "/w/a.py", line 20, in <module>
    f()
    └ <function f at 0x7f>

  File "/w/a.py", line 3, in f
    raise ValueError(x)
                     └ 'bad'

ValueError: bad
"""
IPYTHON = """---------------------------------------------------------------------------
ValueError                                Traceback (most recent call last)
File /w/a.py:20
     18 x = 'bad'
---> 20 f()

File /w/a.py:3, in f()
      1 def f():
----> 3     raise ValueError('bad')

ValueError: bad
"""
AFTERWARDS = """huggingface/tokenizers: The current process just got forked, after parallelism has already been used.
To disable this warning, you can either:
\t- Avoid using `tokenizers` before the fork if possible
\t- Explicitly set the environment variable TOKENIZERS_PARALLELISM=(true | false)
wandb: Find logs at: ./wandb/run-1/logs
/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 2 leaked
  warnings.warn('resource_tracker: There appear to be %d '
"""
BY_TORCHRUN = """W1120 12:00:00.100 12 torch/distributed/elastic/multiprocessing/api.py:897] Sending SIGTERM
E1120 12:00:01.100 12 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Failures:
  <NO_OTHER_FAILURES>
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 12347)
============================================================
"""
BY_ACCELERATE = """Traceback (most recent call last):
  File "/venv/bin/accelerate", line 3, in <module>
  File "/venv/lib/python3.11/site-packages/accelerate/commands/launch.py", line 763, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/venv/bin/python', 'a.py']' returned non-zero exit status 1.
"""
ECHO = BAD.replace("ValueError: bad", "RuntimeError: Connection closed by peer")
IGNORED = f"Exception ignored in: <function X.__del__ at 0x7f>\n{BAD.replace('bad', 'at the end')}"


MARKS = [
    "2024-05-01 12:00:0{},123 ERROR ",
    "[2024-05-01 12:00:0{},123] [ERROR] [launch.py:12:main] ",
    "E0501 12:00:0{}.123456 140 train.py:12] ",
    "2024-05-01T12:00:0{}.123Z stderr F ",
    "May 01 12:00:0{} node1 python[123]: ",
    "ERROR:root:",
    "(worker 3) ",
    "ray::IDLE ",
    "worker-1  | ",
    "12: ",
    "node1: [rank3]: ",
]


def marked(mark: str) -> str:
    return "step 1\n" + "".join(f"{mark.format(at % 10)}{line}\n" for at, line in enumerate(BAD.splitlines()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"step 1\n{BAD}{IGNORED}", ("ValueError", "bad")),
        (f"step 1\n{BAD}{IGNORED}{IGNORED}", ("ValueError", "bad")),
        (f"step 1\n{IGNORED}", None),
        (f"step 1\n{BAD}{BY_TORCHRUN}", ("ValueError", "bad")),
        ("".join(f"[rank1]: {line}\n" for line in BAD.splitlines()) + BY_TORCHRUN, ("ValueError", "bad")),
        (f"step 1\n{BY_TORCHRUN}", None),
        (f"step 1\n{BAD}{BY_ACCELERATE}", ("ValueError", "bad")),
        ("".join(f"[default1]:[rank1]: {line}\n" for line in BAD.splitlines()) + BY_TORCHRUN, ("ValueError", "bad")),
        ("".join(f"[1,0]<stderr>:{line}\n" for line in BAD.splitlines()), ("ValueError", "bad")),
        (BAD + ECHO + BY_TORCHRUN, ("ValueError", "bad")),
        (ECHO + BAD + BY_TORCHRUN, ("ValueError", "bad")),
        (ECHO + BY_TORCHRUN, ("RuntimeError", "Connection closed by peer")),
        ("".join(f"[rank1]: {one}\n[rank0]: {other}\n" for one, other in zip(ECHO.splitlines(), BAD.splitlines(),
                                                                            strict=True)) + BY_TORCHRUN,
         ("ValueError", "bad")),
        (f"step 1\n{RICH}", ("ValueError", "bad")),
        (f"step 1\n{RICH}" + "step 2\n" * 20, None),
        (f"step 1\n{RICH}{_TORCH}\n", ("ValueError", "bad")),
        (f"step 1\n{LOGURU}", ("ValueError", "bad")),
        (f"step 1\n{IPYTHON}", ("ValueError", "bad")),
        (f"step 1\n{IPYTHON}" + "step 2\n" * 20, None),
        (f"{BAD}{AFTERWARDS}", ("ValueError", "bad")),
        (f"{BAD}\rtrain:  40%|████      | 40/100 [00:10<00:15,  4.00it/s]\n", ("ValueError", "bad")),
        (f"{BAD}" + "wandb: Run history:\n" * 30, ("ValueError", "bad")),
        ("".join(f"(Worker pid=9, ip=10.0.0.1) {line}\n" for line in BAD.splitlines()), ("ValueError", "bad")),
        *((marked(mark), ("ValueError", "bad")) for mark in MARKS),
        *((f"step 1\n{mark.format(1)}{BAD}", ("ValueError", "bad")) for mark in MARKS),
        (marked("2024-05-01 12:00:0{} ERROR ") + "2024-05-01 12:00:09 INFO the end\n", ("ValueError", "bad")),
        (marked("2024-05-01 12:00:0{} ERROR ") + "2024-05-01 12:00:09 INFO step\n" * 20, None),
        (marked("ERROR:root:") + "step 5\n", None),
        (BAD.replace("bad", "keys:" + "\n\tmissing: a" * 20), ("ValueError", "keys:" + "\n\tmissing: a" * 20)),
        ('step 1\n  File "/w/a.py", line 2\n    f(\n     ^\nSyntaxError: \'(\' was never closed\n',
         ("SyntaxError", "'(' was never closed")),
        (f"{BAD}\nSet the environment variable HYDRA_FULL_ERROR=1 for a trace.\n", ("ValueError", "bad")),
        (BAD.replace("ValueError: bad", "x.ValidationError: 9 errors" + "\nfield\n  Input should be a number" * 9),
         ("x.ValidationError", "9 errors" + "\nfield\n  Input should be a number" * 9)),
        (f"{BAD.replace('ValueError: bad', 'ImportError: ')}A module of NumPy\n", ("ImportError", "A module of NumPy")),
    ],
)  # fmt: skip
def test_exception_is_found_within_surrounding_output(text: str, expected: tuple[str, str] | None) -> None:
    found = deaths.at_end(text)
    assert (found and (found["type"], found["message"])) == expected
    if expected and found:
        assert [frame.line for frame in frames(found["traceback"])][-1:] in ([3], [2])


def test_a_failed_program_that_printed_no_reason_is_the_cause() -> None:
    found = deaths.at_end(BAD + "step 2\n" * 20 + BY_ACCELERATE)
    assert found and found["message"] == "Command '['/venv/bin/python', 'a.py']' returned non-zero exit status 1."


def test_torch_prefix_and_final_warnings_are_stripped() -> None:
    trace = log("raise ValueError('a\\nb')").rstrip().split("\n")
    marked = "\n".join(["step 1", *(f"[rank3]: {line}" for line in trace), _TORCH, ""])
    assert deaths.at_end(marked) == {"type": "ValueError", "message": "a\nb", "traceback": "\n".join(trace)}
    assert deaths.at_end("\n".join([*trace, "", _TORCH, ""])) == deaths.at_end("\n".join(trace))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Traceback (most recent call last):",
        "Traceback (most recent call last):\n  File",
        "Traceback (most recent call last):\n  File\n*** no exception\n",
        "Traceback (most recent call last):\n  File\nValueError: x\n" + "going on\n" * 20,
        "Traceback (most recent call last):\n  File\nValueError: x\n[rank0] going on\nstep 7\n",
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File\n[rank0]: ValueError: x\nstep 7\n",
    ],
)
def test_text_without_a_final_exception_gives_none(text: str) -> None:
    assert deaths.at_end(text) is None


def test_log_full_of_tracebacks_is_read_in_linear_time() -> None:
    first, failed = "Traceback (most recent call last):\n", "torch.distributed.elastic.multiprocessing.errors."
    numbers = []
    for times in (450, 1800):
        with counted() as calls:
            assert deaths.at_end(f"{first * times}{first}{failed}ChildFailedError: x") is None
        numbers.append(calls.number)
    assert numbers[1] < 6 * numbers[0]


def test_a_mark_of_many_digits_is_compared_once() -> None:
    # What tries each way to part the digits needs years: pytest's own limit ends it.
    digits = "1" * 190
    text = f"{digits}! Traceback (most recent call last):\n{digits}x\nValueError: boom\n"
    assert deaths.at_end(text) is None


def test_crashed_dataloader_worker_is_read_after_a_nul_byte(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    chain = "\nThe above exception was the direct cause of the following exception:\n\n"
    killed = BAD.replace("bad", "DataLoader worker (pid 7) is killed by signal: Segmentation fault. ")
    path.write_text(f"step 1\n\0{killed}{chain}{BAD}")
    found = deaths.read(str(path), 1)
    assert found and found["message"] == "bad" and "Segmentation fault" in found["traceback"]


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    assert deaths.read(str(path), 1) is None
    trace = log("raise ValueError('boom')")
    path.write_bytes(b"x" * (1 << 20) + b"\xff\n" + trace.encode())
    assert deaths.read(str(path), 3) is None
    found = deaths.read(str(path), 1)
    assert found and found["traceback"] == trace.rstrip()


_WATCHDOG = """step 7
[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: timed out
second line
Exception raised from checkTimeout at ProcessGroupNCCL.cpp:632 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f)

Fatal Python error: Aborted

Thread 0x00007f (most recent call first):
"""


def test_a_cpp_exception_that_nobody_caught() -> None:
    found = deaths.terminated(_WATCHDOG)
    assert found and (found["type"], found["traceback"]) == ("c10::DistBackendError", "")
    assert found["message"].startswith("[PG ID 0") and found["message"].endswith("timed out\nsecond line")
    later = deaths.terminated(f"{_WATCHDOG}terminate called without an active exception\nFatal Python error: Aborted")
    assert later == {"type": "std::terminate", "message": "without an active exception", "traceback": ""}
    bare = deaths.terminated("terminate called after throwing an instance of 'int'\nFatal Python error: Aborted\n")
    assert bare == {"type": "int", "message": "", "traceback": ""}
    assert deaths.terminated("step 1\n> terminate called without an active exception?") is None


def test_survived_cpp_exception_is_not_the_cause_of_death() -> None:
    worker = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad jpeg\n"
    on = "step 1\n" * 50
    assert deaths.terminated(worker + on) is None
    assert deaths.terminated(f"terminate called without an active exception\n{on}") is None
    both = deaths.terminated(worker + on + _WATCHDOG)
    assert both == deaths.terminated(_WATCHDOG)
    assert both is not None


def test_the_exit_code_says_what_to_look_for(tmp_path: Path) -> None:
    path = new_file(tmp_path / "rank-0.log", _WATCHDOG)
    for code in (-signal.SIGABRT, -signal.SIGSEGV):
        assert deaths.read(str(path), code) == deaths.terminated(_WATCHDOG)
    for code in (1, 134, -signal.SIGKILL, -signal.SIGTERM):
        assert deaths.read(str(path), code) is None


FATAL = """step 7
{why}Fatal Python error: {name}

Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f2 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751 in _call_impl
  File "/w/model.py", line 41 in forward
  File "/w/train.py", line 9 in <module>
  File "/h/.disttui/_disttui/runner/node/rank/run_main.py", line 80 in body

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""


@pytest.mark.parametrize(
    ("code", "name", "why", "expected"),
    [
        (-11, "Segmentation fault", "", "Segmentation fault in forward (/w/model.py:41)"),
        (-7, "Bus error", "", "Bus error in forward (/w/model.py:41)"),
        (-6, "Aborted", "", "Aborted in forward (/w/model.py:41)"),
        (-6, "Aborted", "double free or corruption (!prev)\n",
         "double free or corruption (!prev) in forward (/w/model.py:41)"),
        (-6, "Aborted", "python: a.c:12: f: Assertion `x > 0' failed.\n",
         "python: a.c:12: f: Assertion `x > 0' failed. in forward (/w/model.py:41)"),
        (-11, "Bus error", "", ""),
        (-9, "Killed", "", ""),
    ],
)  # fmt: skip
def test_the_line_that_called_native_code_which_crashed(
    tmp_path: Path, code: int, name: str, why: str, expected: str
) -> None:
    path = new_file(tmp_path / "rank-0.log", FATAL.format(name=name, why=why))
    assert deaths.crash(str(path), code) == expected


def test_why_native_code_gave_up_is_said_also_without_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_text("step 7\nMemory access fault by GPU node-1 (Agent handle: 0x5) on address 0x7f.\n")
    assert deaths.crash(str(path), -6).startswith("Memory access fault by GPU node-1")
    frames = "".join(f"    @     0x7f0{number}  google::LogMessage::Fail()\n" for number in range(12))
    check = "F0101 10:00:00.0 12 a.cc:7] Check failed: a == b (1 vs. 2)"
    path.write_text(f"step 7\n{check}\n*** Check failure stack trace: ***\n{frames}    @              (nil)\n")
    assert deaths.crash(str(path), -6) == check
    path.write_text("step 7\n")
    assert deaths.crash(str(path), -6) == ""


def test_a_real_crash_has_its_line(tmp_path: Path) -> None:
    script, path = tmp_path / "a.py", tmp_path / "rank-0.log"
    script.write_text("import ctypes\n\ndef f():\n    ctypes.string_at(0)\n\nf()\n")
    with path.open("wb") as out:
        subprocess.run([sys.executable, "-X", "faulthandler", script], stderr=out, timeout=60, check=False)
    assert deaths.crash(str(path), -11) == f"Segmentation fault in f ({script}:4)"
