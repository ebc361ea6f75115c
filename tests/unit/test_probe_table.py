"""The table of `disttui probe`: what it says, its width, and hostile hosts."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from disttui.runner.errors import HostError
from disttui.runner.hosts.facts import Cpu, Disk, Gpu, GpuProcess, HostFacts, Interpreter, Memory, Nic, Workdir
from disttui.runner.render.probe import WIDTH, render_probe
from disttui.tui.wizard.hardware import gpu_name

_GIB = 2**30
_PLAIN = HostFacts(
    hostname="node1", user="u", home="/home/u", kernel="6", arch="x86_64", boot_id="", time=0.0, python="3.11.2",
    psutil=False, euid=1000, resolves=(), resolves_to_loopback=False,
    cpu=Cpu("Some CPU", 8, 16, 16, None, 8, 0.0),
    memory=Memory(64 * _GIB, 60 * _GIB, None),
    gpus=(),
    nics=(
        Nic("lo", ("127.0.0.1",), None, True, True, True),
        Nic("docker0", ("172.17.0.1",), None, True, False, True),
        Nic("eth0", ("10.0.0.1",), 1000, True, False, False),
    ),
    interpreters=(
        Interpreter("/usr/bin/python3", "3.11.2", None, None, None, "path"),
        Interpreter("/home/u/venv/bin/python", "3.11.2", "2.13.0+cpu", None, None, "venv"),
    ),
    disk=Disk("/", 1, 1, True), workdir=Workdir("/home/u", True, None, None), free_port=29500,
    kill_user_processes=None, linger=None, problems=(),
)  # fmt: skip


def _gpu(index: int, used: int = 0, *processes: GpuProcess) -> Gpu:
    return Gpu(index, f"GPU-{index}", "NVIDIA L4", 24 * _GIB, used, 50.0, "550", "8.9", processes)


def test_a_plain_host() -> None:
    assert render_probe([("node1", _PLAIN)]).splitlines() == [
        "HOST   CORES  MEMORY     GPUS  TORCH       ADDRESS",
        "node1  8/8    60/64 GiB  -     2.13.0+cpu  10.0.0.1",
        "    /home/u/venv/bin/python · Python 3.11.2 · torch 2.13.0+cpu",
    ]


def test_a_host_without_torch_says_what_to_set() -> None:
    system = _PLAIN.interpreters[0]
    elsewhere = Interpreter("/home/u/gpt/.venv/bin/python", "3.11.2", "2.13.0", None, None, "elsewhere")
    for found, lines in (
        ((system,), ["no torch in /usr/bin/python3. Set `python: PATH` to one that has it."]),
        (
            (system, elsewhere),
            ["no torch in /usr/bin/python3.",
             "Set `python` in the profile to /home/u/gpt/.venv/bin/python (torch 2.13.0)."],
        ),
    ):  # fmt: skip
        shown = render_probe([("node1", replace(_PLAIN, interpreters=found))]).splitlines()
        assert "none" in shown[1]
        assert " ".join(shown[2:]).split() == " ".join(lines).split()


def test_busy_gpus_name_who_uses_them() -> None:
    busy = _gpu(1, 20 * _GIB, GpuProcess(4242, "alice", 20 * _GIB, "python"))
    text = render_probe([("node1", replace(_PLAIN, gpus=(_gpu(0), busy, _gpu(2, 9 * _GIB))))])
    assert "1/3 free" in text
    assert "    GPUs 0-2: NVIDIA L4, 24 GiB" in text
    assert "    GPU 1: 20.0 GiB used, 50 % busy, by alice (python 4242)" in text
    assert "    GPU 2: 9.0 GiB used, 50 % busy, by a process that is not visible from here" in text


def test_a_gpu_that_is_not_there_is_in_no_range() -> None:
    text = render_probe([("node1", replace(_PLAIN, gpus=(_gpu(0), _gpu(2), _gpu(3), _gpu(4))))])
    assert "    GPUs 0, 2-4: NVIDIA L4, 24 GiB" in text


def test_gpu_memory_that_is_not_reported_is_unknown() -> None:
    gpu = replace(_gpu(0), name="NVIDIA GB10", memory_total=0)
    assert "GPU 0: NVIDIA GB10, memory unknown" in render_probe([("node1", replace(_PLAIN, gpus=(gpu,)))])
    assert gpu_name(gpu) == "GB10 memory unknown" and gpu_name(_gpu(0)) == "L4 24 GiB"


def test_differences_are_marked_against_most_hosts() -> None:
    other = replace(
        _PLAIN,
        interpreters=(Interpreter("/p", "3.10.1", "2.12.0", "12.6", "2.21.5", "path"),),
        memory=Memory(66 * _GIB, 60 * _GIB, None),  # within the tolerance
        cpu=replace(_PLAIN.cpu, physical=4, available=4),
    )
    lines = render_probe([("a", other), ("b", _PLAIN), ("c", _PLAIN)]).splitlines()
    assert [line.count("≠") for line in lines if line.startswith(("a ", "b ", "c "))] == [2, 0, 0]
    assert lines[-2:] == ["≠ cores: 4/4 on a; 8/8 on b, c", "≠ torch: 2.12.0 (CUDA 12.6) on a; 2.13.0+cpu on b, c"]


def test_hosts_that_failed_keep_their_place() -> None:
    error = HostError("node2", "connection refused", "start sshd there")
    lines = render_probe([("node1", _PLAIN), ("node2", error), ("node3", _PLAIN)]).splitlines()
    assert [line.split("  ")[0] for line in lines[1:3]] == ["node1", "node2: connection refused"]
    assert lines[3] == "    → start sshd there" and lines[4].startswith("node3  8/8")
    assert render_probe([("node2", error)]).startswith("node2: connection refused")


def test_probe_lists_what_several_hosts_share_once() -> None:
    full = replace(_PLAIN, problems=("disk full",))
    names = [f"n{number}" for number in range(1, 5)]
    assert [line.strip() for line in render_probe([(name, _PLAIN) for name in names]).splitlines()[5:]] == [
        "all 4 hosts:", "/home/u/venv/bin/python · Python 3.11.2 · torch 2.13.0+cpu",
    ]  # fmt: skip
    found = [("a", _PLAIN), ("b", full), ("c", replace(full, problems=("disk full", "clock off")))]
    assert [line.strip() for line in render_probe(found).splitlines()[3:]] == [
        "c     8/8    60/64 GiB  -     2.13.0+cpu  10.0.0.1", "! clock off",
        "a, b, c:", "/home/u/venv/bin/python · Python 3.11.2 · torch 2.13.0+cpu",
        "b, c:", "! disk full",
    ]  # fmt: skip


def test_limits_explain_few_cores() -> None:
    limited = replace(_PLAIN, cpu=Cpu("Some CPU", 8, 16, 4, 1.5, 1, 0.0))
    words = " ".join(render_probe([("node1", limited)]).split())
    assert "this login may use 4 of 16 logical CPUs, its control group allows 1.5 cores" in words


@pytest.mark.parametrize("name", ["node1", "a-very-long-host-name.of.a.datacentre.far.away.example.org"])
def test_at_most_80_columns(name: str) -> None:
    wide = replace(
        _PLAIN,
        cpu=replace(_PLAIN.cpu, physical=128, available=128),
        memory=Memory(2015 * _GIB, 1007 * _GIB, None),
        gpus=tuple(_gpu(index) for index in range(8)),
        nics=(Nic("ib0", ("2001:db8:1111:2222:3333:4444:5555:6666",), 200_000, True, False, False),),
        problems=("x" * 300, "word " * 60),
    )
    text = render_probe([(name, wide), ("other", _PLAIN)])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "2001:db8:1111:2222:3333:4444:5555:6666" in text


def test_remote_text_cannot_steer_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\nnode9  ok\u202e"
    facts = replace(
        _PLAIN,
        problems=(evil,),
        interpreters=(Interpreter(evil, evil, evil, evil, evil, "path"),),
        gpus=(replace(_gpu(0, 0, GpuProcess(1, evil, None, evil)), name=evil),),
        nics=(Nic(evil, (evil, evil), 1000, True, False, False),),
    )
    facts = HostFacts.from_json(asdict(facts))
    text = render_probe([(evil, facts), ("b", HostError("b", evil, evil)), ("c", _PLAIN)])
    assert not any(character in text for character in "\x1b\x07\u202e")
    assert not any(line.startswith("node9") for line in text.splitlines())
