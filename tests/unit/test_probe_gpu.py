"""nvidia-smi's answers, whole and broken; a wedged one is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node.probe import amd, gpu
from tests.files import new_file

_DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"


def _text(name: str) -> str:
    return (_DATA / name).read_bytes().decode("utf-8", "replace")


Smi = Callable[[str], None]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """Put a nvidia-smi of the given shell lines first in PATH."""

    def make(lines: str) -> None:
        new_file(tmp_path / "nvidia-smi", "#!/bin/sh\n" + lines, 0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


def _parsed(name: str) -> tuple[list[Any], list[str]]:
    problems: list[str] = []
    return gpu.parse_gpus(_text(name), problems), problems


def test_normal() -> None:
    gpus, problems = _parsed("gpus-normal-550.csv")
    assert problems == []
    assert [item["index"] for item in gpus] == [0, 1, 2, 3]
    assert gpus[1] == {
        "index": 1,
        "uuid": "GPU-11111111-aaaa-bbbb-cccc-000000000001",
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_total": 81920 * 2**20,
        "memory_used": 79034 * 2**20,
        "use": 98.0,
        "driver": "550.54.15",
        "compute_capability": "8.0",
        "processes": [],
    }


@pytest.mark.parametrize("name", ["gpus-geforce-na.csv", "gpus-mig.csv", "gpus-err.csv"])
def test_use_that_is_not_reported_is_null(name: str) -> None:
    gpus, _ = _parsed(name)
    assert len(gpus) == 2
    assert gpus[0]["use"] is None


def test_a_card_that_hides_its_memory_is_named() -> None:
    assert _parsed("gpus-unified-memory.csv")[1] == [
        "GPU 0 (NVIDIA GB10) does not report its memory: nvidia-smi says [N/A]"
    ]
    gpus, problems = _parsed("gpus-err.csv")
    assert gpus[1]["compute_capability"] == ""
    assert problems == [
        "GPU 0 (NVIDIA GeForce RTX 3090) does not report its used memory: nvidia-smi says ERR!; only "
        "processes show whether it is free",
        "GPU 1 (NVIDIA GeForce RTX 3090) does not report its memory: nvidia-smi says [GPU requires reset]",
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpus-lost.txt", "Unable to determine the device handle"),
        ("gpus-no-driver.txt", "couldn't communicate"),
        ("gpus-mismatch.txt", "Driver/library version mismatch"),
    ],
)
def test_what_is_no_gpu_becomes_a_problem(name: str, said: str) -> None:
    gpus, problems = _parsed(name)
    assert gpus == []
    assert said in problems[0]


def test_a_driver_without_devices_is_no_problem() -> None:
    assert _parsed("gpus-none.txt") == ([], [])


def test_a_lost_gpu_is_left_out_and_named() -> None:
    problems: list[str] = []
    lost = ", ".join(["[GPU is lost]"] * 4)
    assert gpu.parse_gpus(f"0, GPU-a, {lost}, 550.54.15, [GPU is lost]", problems) == []
    assert problems == ["GPU 0 does not answer, and is skipped: nvidia-smi says [GPU is lost]"]


def test_garbage_and_truncation() -> None:
    gpus, problems = _parsed("gpus-garbage.bin")
    assert gpus == []
    assert len(problems) == 4
    gpus, problems = _parsed("gpus-truncated.csv")
    assert [item["index"] for item in gpus] == [0]
    assert len(problems) == 1


def test_endless_garbage_gives_few_problems() -> None:
    problems: list[str] = []
    gpu.parse_gpus("\n".join(f"line {number}" for number in range(10_000)), problems)
    assert len(problems) == 20


def test_processes_go_to_their_gpu() -> None:
    gpus, problems = _parsed("gpus-normal-550.csv")
    gpu.parse_apps(_text("apps-busy.csv"), gpus, problems)
    assert problems == []
    first, second = gpus[1]["processes"]
    assert first == {"pid": 4194001, "user": "?", "memory": 78512 * 2**20, "command": "python"}
    assert (second["memory"], second["command"]) == (None, "run")
    assert gpus[2]["processes"][0]["command"] == "[Not Found]"
    assert gpus[0]["processes"] == gpus[3]["processes"] == []


def test_nobody_computes() -> None:
    gpus, problems = _parsed("gpus-normal-550.csv")
    gpu.parse_apps(_text("apps-none.txt"), gpus, problems)
    assert problems == [] and not any(item["processes"] for item in gpus)


def test_a_process_on_a_slice_is_not_lost() -> None:
    gpus, problems = _parsed("gpus-mig.csv")
    gpu.parse_apps(_text("apps-mig.csv"), gpus, problems)
    assert "process 4194001 computes on MIG-" in problems[0]


def test_owner_of_a_process() -> None:
    gpus, problems = _parsed("gpus-old-418-retry.csv")
    gpu.parse_apps(f"{gpus[0]['uuid']}, {os.getpid()}, 10, python", gpus, problems)
    import pwd

    assert gpus[0]["processes"][0]["user"] == pwd.getpwuid(os.getuid()).pw_name


def test_an_old_driver_is_asked_again_without_compute_cap(smi: Smi) -> None:
    smi(f"""case $1 in
*compute_cap*) cat '{_DATA}/gpus-old-418.csv'; exit 2 ;;
*query-gpu*) cat '{_DATA}/gpus-old-418-retry.csv' ;;
*) cat '{_DATA}/apps-none.txt' ;;
esac
""")
    problems: list[str] = []
    gpus = gpu.facts(problems)
    assert [(item["name"], item["compute_capability"]) for item in gpus] == [("Tesla V100-PCIE-16GB", "")]
    assert problems == []


def test_a_wedged_nvidia_smi_is_killed(smi: Smi, tmp_path: Path) -> None:
    smi(f"""trap '' TERM INT HUP
echo $$ >> {tmp_path}/pids
while :; do sleep 1000; done
""")
    problems: list[str] = []
    assert gpu.facts(problems, limit=1.0) == []
    assert problems == ["nvidia-smi did not answer in 1 s and was killed"]
    for pid in (tmp_path / "pids").read_text().split():
        status = Path("/proc", pid, "status")
        assert not status.exists() or "\nState:\tZ" in status.read_text()


def test_users_unknown_when_only_the_process_list_is_wedged(smi: Smi) -> None:
    smi(f"""case $1 in
*query-gpu*) cat '{_DATA}/gpus-normal-550.csv' ;;
*) sleep 1000 ;;
esac
""")
    problems: list[str] = []
    assert len(gpu.facts(problems, limit=1.0)) == 4
    assert problems == ["nvidia-smi did not answer in 1 s and was killed: who uses the GPUs is unknown"]


def test_a_broken_program_is_named(smi: Smi, tmp_path: Path) -> None:
    smi("")
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF not really")
    problems: list[str] = []
    assert gpu.facts(problems) == []
    assert problems == [f"{tmp_path}/nvidia-smi cannot be started"]


def test_no_program_and_no_device_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_smi", lambda: None)
    monkeypatch.setattr(gpu, "has_device", lambda: False)
    problems: list[str] = []
    assert gpu.facts(problems) == [] and problems == []
    monkeypatch.setattr(gpu, "has_device", lambda: True)
    assert gpu.facts(problems) == [] and "nvidia-smi is not in PATH" in problems[0]


LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-55555555-aaaa-bbbb-cccc-000000000000)
  MIG 3g.40gb     Device  0: (UUID: MIG-a)
  MIG 1g.10gb+me  Device  1: (UUID: MIG-b)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-55555555-aaaa-bbbb-cccc-000000000001)
"""


def test_a_gpu_that_is_cut_into_slices_is_not_a_whole_one() -> None:
    gpus, problems = _parsed("gpus-mig.csv")
    assert [one["index"] for one in gpu.without_slices(LISTED, gpus, problems)] == [1]
    assert "GPU 0 (NVIDIA H100 80GB HBM3) has MIG slices" in problems[0]
    assert "3g.40gb (MIG-a), 1g.10gb+me (MIG-b)" in problems[0] and len(problems) == 1
    assert gpu.without_slices("", gpus, problems) == gpus


@pytest.mark.parametrize("said", ["[N/A]", "[Insufficient Permissions]", "[Not Supported]", "ERR!"])
def test_memory_that_is_not_reported_is_unknown(said: str) -> None:
    problems: list[str] = []
    (one,) = gpu.parse_gpus(f"0, GPU-a, NVIDIA GB10, {said}, {said}, 3, 580.82.09, 12.1", problems)
    assert one["memory_total"] == 0 and problems == [
        f"GPU 0 (NVIDIA GB10) does not report its memory: nvidia-smi says {said}"
    ]


@pytest.mark.parametrize("capability", [", 8.9", ", [N/A]", ""])
def test_a_number_in_a_name_is_not_its_memory(capability: str) -> None:
    problems: list[str] = []
    text = f"0, GPU-a, NVIDIA RTX, 4090, 24, 24564, 4, 7, 570.1.1{capability}"
    (one,) = gpu.parse_gpus(text, problems)
    assert (one["name"], one["memory_total"], one["use"]) == ("NVIDIA RTX, 4090, 24", 24564 << 20, 7)
    assert (one["driver"], one["compute_capability"], problems) == ("570.1.1", "8.9" if "8.9" in capability else "", [])


def test_a_name_with_commas_moves_no_number() -> None:
    problems: list[str] = []
    (one,) = gpu.parse_gpus("0, GPU-a, NVIDIA GB200, 186GB, HBM3e, 189471, 4, [N/A], 570.1.1, 10.0", problems)
    assert (one["name"], one["memory_total"], one["memory_used"]) == (
        "NVIDIA GB200, 186GB, HBM3e",
        189471 << 20,
        4 << 20,
    )
    assert (one["driver"], one["compute_capability"], problems) == ("570.1.1", "10.0", [])


def test_a_gpu_in_mig_mode_without_slices_is_not_a_whole_one(smi: Smi) -> None:
    smi("""case $1 in
*query-gpu*) echo '0, GPU-a, NVIDIA A100, 81920, 0, [N/A], 550.54.15, 8.0, Enabled'
             echo '1, GPU-b, NVIDIA A100, 81920, 0, 3, 550.54.15, 8.0, Disabled' ;;
-L) echo 'GPU 0: NVIDIA A100 (UUID: GPU-a)' ;;
esac
""")
    problems: list[str] = []
    assert [(one["index"], one["compute_capability"]) for one in gpu.facts(problems)] == [(1, "8.0")]
    assert problems == [
        "GPU 0 (NVIDIA A100) is in MIG mode without slices, so nothing can compute on it: create one, or end the "
        "mode: nvidia-smi -i 0 -mig 0 (as root)"
    ]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("0, GPU-a, NVIDIA A100, 81920, 0, 3, 550.54.15, 8.0, Disabled", ""),
        ("0, GPU-a, Tesla V100, 32768, 0, 3, 450.80.02", "MIG slices are unknown"),
        ("0, GPU-a, NVIDIA A100, 81920, 0, 3, 550.54.15, 8.0, [Unknown Error]", "MIG slices are unknown"),
        ("0, GPU-a, NVIDIA A100, 81920, 0, 3, 550.54.15, 8.0, Enabled", "is in MIG mode, which runs do not use"),
    ],
)
def test_a_list_of_slices_that_hangs_is_named(smi: Smi, row: str, told: str) -> None:
    smi(f"""case $1 in
*query-gpu*) echo '{row}' ;;
-L) sleep 1000 ;;
esac
""")
    problems: list[str] = []
    gpus = gpu.facts(problems, limit=1.0)
    assert [told in one for one in problems] == ([True] if told else [])
    assert len(gpus) == ("MIG mode" not in told)


@pytest.mark.parametrize("mode", ["[N/A]", "N/A", "Disabled", "[Not Supported]"])
@pytest.mark.parametrize("capability", ["12.1", "[N/A]"])
def test_a_mode_of_mig_moves_no_number(mode: str, capability: str) -> None:
    (one,) = gpu.parse_gpus(f"0, GPU-a, NVIDIA GB200, 186GB, 189471, 4, 9, 570.1.1, {capability}, {mode}", [])
    assert (one["name"], one["memory_total"], one["use"]) == ("NVIDIA GB200, 186GB", 189471 << 20, 9)
    assert one["driver"] == "570.1.1"


@pytest.mark.parametrize(("code", "device", "named"), [(9, False, True), (0, True, True), (0, False, False)])
def test_an_nvidia_smi_that_prints_nothing_is_named(
    smi: Smi, monkeypatch: pytest.MonkeyPatch, code: int, device: bool, named: bool
) -> None:
    monkeypatch.setattr(gpu, "has_device", lambda: device)
    smi(f"exit {code}\n")
    problems: list[str] = []
    said = [f"nvidia-smi prints nothing (exit code {code}): the GPUs are not visible"]
    assert gpu.facts(problems) == [] and problems == (said if named else [])


ROCM = {
    "card0": {"Unique ID": "0xa", "Card Series": "AMD Instinct MI250X", "VRAM Total Memory (B)": "68702699520",
              "VRAM Total Used Memory (B)": "10960896", "GPU use (%)": "7", "GFX Version": "gfx90a"},
    "card1": {"Unique ID": "N/A", "Card series": "N/A", "Card model": "0x740c", "VRAM Total Memory (B)": "N/A"},
    "system": {"Driver version": "6.2.4"},
}  # fmt: skip
STATIC = [{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0xb",
                              "target_graphics_version": "gfx942"},
           "vram": {"size": {"value": 196592, "unit": "MB"}}, "driver": {"version": "6.8.5"}}]  # fmt: skip
METRIC = [{"gpu": 0, "mem_usage": {"used_vram": {"value": 283, "unit": "MB"}},
           "usage": {"gfx_activity": {"value": 5, "unit": "%"}}}]  # fmt: skip


def test_what_rocm_smi_says() -> None:
    first, second = amd.parse_rocm_smi(ROCM, [])
    assert (first["index"], first["name"], first["memory_total"], first["use"]) == (
        0, "AMD Instinct MI250X", 68702699520, 7,
    )  # fmt: skip
    assert (first["driver"], first["compute_capability"], first["uuid"]) == ("6.2.4", "gfx90a", "0xa")
    assert (second["name"], second["memory_total"], second["uuid"]) == ("0x740c", 0, "")


def test_warnings_around_what_rocm_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "rocm-smi"
    warning = "WARNING: AMD GPU device(s) is/are in a low-power state."
    program.write_text(f"#!/bin/sh\necho '{warning}'\necho\necho '{json.dumps(ROCM)}'\necho '{warning}'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert amd.facts([]) == amd.parse_rocm_smi(ROCM, [])


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_amd_smi_says(wrapped: bool) -> None:
    static, metric = ({"gpu_data": STATIC}, {"gpu_data": METRIC}) if wrapped else (STATIC, METRIC)
    (one,) = amd.parse_amd_smi(static, metric, [])
    assert (one["name"], one["memory_total"], one["memory_used"]) == ("AMD Instinct MI300X", 196592 << 20, 283 << 20)
    assert (one["use"], one["compute_capability"], one["driver"]) == (5, "gfx942", "6.8.5")


@pytest.mark.parametrize("key", ["accelerator_partition", "compute_partition"])
@pytest.mark.parametrize(("mode", "said"), [("SPX", ""), ("N/A", ""), ("CPX", "(CPX/NPS4)")])
def test_a_part_of_an_amd_card_is_named(key: str, mode: str, said: str) -> None:
    problems: list[str] = []
    amd.parse_amd_smi([{**STATIC[0], "partition": {key: mode, "memory_partition": "NPS4"}}], METRIC, problems)
    assert [said in one and "one part of a partitioned card" in one for one in problems] == ([True] if said else [])


@pytest.mark.parametrize(
    ("size", "total"),
    [
        ({"size": {"value": 192, "unit": "GiB"}}, 192 << 30),
        ({"size": "196592 MB"}, 196592 << 20),
        ({"size": 196592}, 0),
        ({"size": "N/A"}, 0),
        ({"size_mb": 196592}, 196592 << 20),
        ({"vram_size_mb": 65536}, 65536 << 20),
    ],
)
def test_memory_of_amd_smi_has_its_unit_or_is_unknown(size: dict[str, object], total: int) -> None:
    (one,) = amd.parse_amd_smi([{"gpu": 0, "asic": {"market_name": "N/A"}, "vram": size}], None, [])
    assert (one["name"], one["memory_total"]) == ("AMD GPU", total)


@pytest.mark.parametrize("answer", [None, [], {}, {"card0": 3}, [{"gpu": "x"}], {"gpu_data": {}}, "text"])
def test_answers_of_amds_programs_that_are_not_understood(answer: object) -> None:
    assert amd.parse_rocm_smi(answer, []) == [] and amd.parse_amd_smi(answer, answer, []) == []


def test_memory_that_an_amd_card_does_not_report_is_named() -> None:
    problems: list[str] = []
    amd.parse_rocm_smi({"card0": {"VRAM Total Memory (B)": "N/A"}, "card1": {"VRAM Total Memory (B)": "9"}}, problems)
    amd.parse_amd_smi(
        [{"gpu": 2, "vram": {"size": {"value": 9, "unit": "MB"}}}], [{"gpu": 2, "mem_usage": "N/A"}], problems
    )
    assert problems == [
        "GPU 0 (AMD GPU) does not report its memory",
        "GPU 1 (AMD GPU) does not report its used memory",
        "GPU 2 (AMD GPU) does not report its used memory",
    ]
