from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.preparing import as_run
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.planning.preflight import check
from tests.unit.planning import FOLDER, Planned, facts, planned

SCRIPT = {"script": "train.py", "workdir": "~/p"}
EMPTY = "Sandbox homes are empty: set `job.workdir` to a local folder, such as "


def one_error(it: Planned, *parts: str) -> None:
    errors = it.found("error")
    assert len(errors) == 1, errors
    assert all(part in errors[0] for part in parts), errors[0]


def test_a_sound_cluster_has_nothing_to_say() -> None:
    assert planned(facts("a100x8"), facts("a100x6_busy")).findings == ()


def changed(host: HostFacts, part: str, **fields: Any) -> HostFacts:
    return replace(host, **{part: replace(getattr(host, part), **fields)})


def cases() -> Iterator[Any]:
    desk, box = facts("cpu_desk"), facts("a100x8")
    ours = {"job": SCRIPT}
    missing = changed(desk, "workdir", script="/home/ada/p/train.py", script_exists=False)
    yield "script", missing, ours, ("node1: the script /home/ada/p/train.py does not exist", "job.script")
    nowhere = changed(desk, "workdir", path="/home/ada/p", exists=False)
    yield "workdir", nowhere, ours, ("node1: the working folder /home/ada/p does not exist", "job.workdir")
    locked = changed(desk, "disk", writable=False)
    yield (
        "run folder",
        locked,
        {},
        ("node1: the run folder /home/ada/.disttui/runs cannot be written", "launch.run_dir"),
    )
    said = (f"run_dir {desk.disk.path}: /home/ada cannot be written: Read-only file system",)
    yield "read-only", replace(locked, problems=said), {}, ("/runs cannot be written: Read-only file system → Choose",)
    yield "disk full", changed(desk, "disk", free=2**20), {}, ("node1: the disk of", "1 MiB free of", "Free space")
    yield "no torch", facts("no_torch"), {}, ("node1: no torch in /usr/bin/python3", "~/.venv/bin/pip install torch")
    project = replace(desk.interpreters[1], path="/home/ada/gpt/.venv/bin/python", source="elsewhere")
    others = replace(desk, interpreters=(facts("no_torch").interpreters[0], project))
    yield (
        "not chosen",
        others,
        {},
        ("no torch in /usr/bin/python3", "`python: /home/ada/gpt/.venv/bin/python`, which"),
    )
    yield "no python", replace(desk, interpreters=()), {}, ("node1: no Python found", "Install one")
    gone = {"python": "/opt/x/bin/python"}
    yield "wrong python", desk, gone, ("node1: /opt/x/bin/python does not exist", "`python`")
    unseen = ("/opt/x/bin/python cannot be inspected: [Errno 2] No such file or directory",)
    yield "wrong python, inspected", replace(desk, problems=unseen), gone, ("node1: /opt/x/bin/python does not exist",)
    other = ("/opt/x/bin/python cannot be inspected: not Python 3 (pip 24)",)
    yield "another program as python", replace(desk, problems=other), gone, (f"node1: {other[0]} → Correct",)
    beside = {"python": "/usr/bin/pyhton3"}
    yield "misspelt path", desk, beside, ("Did you mean /usr/bin/python3? Correct `python`",)
    yield "misspelt python", desk, {"python": "pyhton3"}, ("node1: pyhton3 is not in PATH", "`python`")
    bare = replace(desk.interpreters[0], path="/opt/x/bin/python", source="profile")
    yield "torch elsewhere", replace(desk, interpreters=(bare, desk.interpreters[1])), gone, ("no torch in /opt/x/bin",)
    old = replace(desk.interpreters[1], torch="2.5.1+cpu")
    yield "old torch", replace(desk, interpreters=(old,)), {}, ("torch 2.5.1+cpu", "older than 2.6", "built-in job")
    yield "no port", replace(desk, free_port=None), {}, ("node1: no port from 29500 to 29599 is free", "launch.ports")
    held = replace(desk, free_port=None, ports_held="alice holds 100 ports")
    yield "others' ports", held, {}, ("29599 is free: alice holds 100 ports", "launch.ports")
    yield "absent gpu", box, {"hosts": [{"gpus": [0, 9]}]}, ("node1: GPU 9 does not exist", "available: 0, 1, 2")
    few = {"hosts": [{"gpus": [0, 1], "num_processes": 3}]}
    over = {"hosts": [{"gpus": [0, 1, 2], "quota": 2}]}
    yield "more than the quota", box, over, ("this run uses 3 GPUs here, but the host's `quota`", "Use fewer")
    yield (
        "too many processes",
        box,
        few,
        ("node1: num_processes is 3, but the run has 2 GPUs here", "Lower num_processes"),
    )
    nccl: dict[str, Any] = {"launch": {"backend": "nccl"}}
    yield "nccl without gpu", desk, nccl, ("node1: backend nccl, but no GPU found", "gloo")
    cpu_torch = replace(box.interpreters[0], torch="2.13.0+cpu", cuda=None)
    yield (
        "nccl without cuda",
        replace(box, interpreters=(cpu_torch,)),
        nccl,
        ("torch 2.13.0+cpu of /opt/venv", "no CUDA"),
    )
    yield "all gpus busy", facts("a100_all_busy"), nccl, ("num_processes is 1, but the run has 0 GPUs here",)
    wrong = {"job": {"builtin": "bytegpt", "args": ["--stepz", "3"]}}
    yield "bytegpt's arguments", desk, wrong, ("bytegpt: ", "--stepz", "job.args")
    yield "bytegpt's help", desk, {"job": {"builtin": "bytegpt", "args": ["--help"]}}, ("bytegpt: --help only",)


@pytest.mark.parametrize(("host", "rest", "parts"), [pytest.param(*case[1:], id=case[0]) for case in cases()])
def test_one_error_with_host_and_cure(host: HostFacts, rest: dict[str, Any], parts: tuple[str, ...]) -> None:
    one_error(planned(host, **rest), *parts)


def test_too_few_gpus_and_busy_gpus_are_different_findings() -> None:
    nccl: dict[str, Any] = {"launch": {"backend": "nccl"}}
    for host, many, keys in (("a100_all_busy", 1, False), ("a100_all_busy", 64, True)):
        rest = {**nccl, "hosts": [{"num_processes": many}]}
        found = planned(facts(host), **rest).findings
        assert [bool(one.keys) for one in found if "num_processes is" in one.what] == [keys]


def test_only_loopback_is_an_error_between_machines_alone() -> None:
    desk = facts("cpu_desk")
    alone = replace(desk, nics=desk.nics[:1])
    one_error(planned(alone, facts("cpu_container")), "node1: no network interface", "`address`")
    assert planned(alone).found("error") == []
    assert planned(alone, alone).found("error") == []
    given = planned(alone, facts("cpu_container"), hosts=[{"address": "192.168.1.20"}, {}])
    assert given.found("error") == []


def test_a_script_that_lies_here_is_pointed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    missing = changed(facts("cpu_desk"), "workdir", script="/home/ada/train.py", script_exists=False)
    job = {"script": "train.py"}
    (seen,) = planned(missing, hosts=[{"host": "local"}], job=job).found("error")
    assert seen.endswith(f"does not exist → It is here: set `job.workdir: {tmp_path}` in the profile"), seen
    (seen,) = planned(missing, job=job).found("error")
    cure = f"→ It is on this machine: set `job.sync: {tmp_path}` to send it, or correct `job.workdir`"
    assert seen.endswith(cure), seen
    monkeypatch.chdir("/")
    (seen,) = planned(missing, job=job).found("error")
    assert seen.endswith("→ Copy it there, or correct `job.script` or `job.workdir`"), seen


def test_code_at_the_same_path_here_is_pointed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    monkeypatch.chdir("/")
    where = {"path": str(tmp_path), "script": f"{tmp_path}/src/train.py"}
    no_script = changed(facts("cpu_desk"), "workdir", script_exists=False, **where)
    no_folder = changed(facts("cpu_desk"), "workdir", exists=False, **where)
    sends = f"set `job.sync: {tmp_path}` in place of `job.workdir` to send it, or correct `job.workdir`"
    for host, name in ((no_script, "src/train.py"), (no_folder, "src/train.py"), (no_folder, "other.py")):
        job = {"script": name, "workdir": str(tmp_path)}
        (seen,) = planned(host, job=job).found("error")
        assert seen.endswith(f"→ It is on this machine: {sends}"), seen


def test_proposed_sync_makes_a_missing_script_or_module_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("src/train.py", "pkg/train.py", "made/__main__.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    missing = changed(facts("cpu_desk"), "workdir", script="/home/ada/src/train.py", script_exists=False)

    def cure(there: HostFacts, job: dict[str, str], **of_host: str) -> str:
        (seen,) = planned(there, hosts=[of_host], job=job).found("error")
        return seen.partition(" → ")[2]

    sends = f"It is on this machine: set `job.sync: {tmp_path}` to send it, or correct `job.workdir`"
    assert cure(missing, {"script": "src/train.py"}) == sends, "the script starts at the folder that is sent"
    both = f"set `job.sync: {tmp_path}` and `job.script: src/train.py` to send"
    assert both in cure(missing, {"script": f"{tmp_path}/src/train.py"})
    lacks = changed(facts("cpu_desk"), "needs", module="pkg")
    assert cure(lacks, {"module": "pkg.train"}) == cure(lacks, {"module": "made"}) == sends
    local = cure(lacks, {"module": "pkg.train"}, host="local")
    assert local == f"It is here: set `job.workdir: {tmp_path}` in the profile"
    assert cure(lacks, {"module": "other"}) == "Install it, or correct `job.module` or `job.workdir`"
    monkeypatch.setenv("HOME", str(tmp_path))
    both = f"set `job.sync: {tmp_path}/src` and `job.script: train.py` to send"
    assert both in cure(missing, {"script": "src/train.py"}), "a whole home is not sent"
    (tmp_path / "train.py").touch()
    assert f"`job.sync: {tmp_path}/train.py` to" in cure(missing, {"script": "train.py"})
    assert "job.sync" not in cure(lacks, {"module": "pkg.train"})


def test_files_missing_in_a_sandbox_home_are_sought_locally() -> None:
    """Nothing can be put into a folder that is made anew for each run."""
    desk = facts("cpu_desk")
    nowhere = changed(desk, "workdir", path="/home/ada/p", exists=False)
    missing = changed(desk, "workdir", path="/home/ada", script="/home/ada/train.py", script_exists=False)
    elsewhere = changed(desk, "workdir", path="/srv/p", exists=False)
    for host, in_home in ((nowhere, True), (missing, True), (elsewhere, False)):
        it = planned(host, job=SCRIPT)
        found = check(as_run(it.profile, sandbox=True), it.facts, it.plan, {})
        (cure,) = (one.cure for one in found if "does not exist" in one.what and one.cure.count("workdir"))
        assert (cure == f"{EMPTY}{Path.cwd()}") is in_home, cure


def test_an_interface_that_is_not_there() -> None:
    it = planned(facts("vpn_docker"), facts("cpu_desk"), hosts=[{"interface": "eth7"}, {}])
    one_error(it, "node1: the interface eth7 does not exist", "available: docker0")


def test_an_environment_is_known_before_its_torch_is_missed() -> None:
    none, job = facts("no_torch"), {**SCRIPT, "environment": "requirements.txt"}
    it = planned(none, job=job)
    assert it.found("error") == []
    assert any("the environment of requirements.txt was not found" in line for line in it.found("warning"))
    path = f"/home/ada/.cache/disttui/environments/{'a' * 16}.{'b' * 16}/env/bin/python"
    bare = replace(none.interpreters[0], path=path, source="profile")
    one_error(
        planned(replace(none, interpreters=(bare,)), job=job, python=path),
        f"node1: no torch in {path}", "Add torch to requirements.txt", "job.environment.inherit",
    )  # fmt: skip


def test_packages_that_differ_are_named() -> None:
    desk = facts("cpu_desk")
    hosts = [replace(desk, packages={"numpy": version}) for version in ("1.26", "2.0")]
    warnings = planned(*hosts, job={**SCRIPT, "environment": "."}).found("warning")
    assert any("numpy differs: 1.26 on node1, 2.0 on node2" in line for line in warnings)


def test_old_torch_is_a_warning_and_unknown_in_a_container() -> None:
    attic = facts("neglected", free_port=29500)
    it = planned(attic, job=SCRIPT)
    assert it.found("error") == []
    assert any("torch 2.4.1+cpu" in line for line in it.found("warning"))
    wrapped = planned(facts("no_torch"), job={**SCRIPT, "wrap": ["apptainer", "exec", "x.sif"]})
    assert wrapped.found("error") == []


def test_a_busy_gpu_of_the_profile_is_a_warning() -> None:
    it = planned(facts("a100x6_busy"), hosts=[{"gpus": [1, 2]}])
    assert it.found("error") == []
    assert it.found("warning") == [
        "node1: GPU 2 is held by alice (python, 11.2 GiB) → Choose another with `gpus`, or ask its user"
    ]


def test_waiting_for_a_lost_host_needs_a_further_attempt() -> None:
    alone = planned(facts("cpu_desk"), launch={"rejoin_timeout": 300})
    assert ["launch.rejoin_timeout" in line and "launch.restarts" in line for line in alone.found("warning")] == [True]
    assert planned(facts("cpu_desk"), launch={"rejoin_timeout": 300, "restarts": 1}).findings == ()


def test_arguments_to_resume_by_need_a_further_attempt() -> None:
    launch = {"resume_args": ["--resume"]}
    (seen,) = planned(facts("cpu_desk"), job=SCRIPT, launch=launch).found("warning")
    assert "launch.resume_args" in seen and "launch.restarts" in seen
    it = planned(facts("cpu_desk"), job=SCRIPT, launch={**launch, "restarts": 1})
    assert it.findings == () and it.plan.spec(0, "x")["launch"]["resume_args"] == ["--resume"]


def test_warnings_about_a_neglected_host() -> None:
    seen = "\n".join(planned(facts("cpu_desk"), facts("neglected")).found("warning"))
    for part in (
        "node2: the disk of /home/ada/.disttui/runs has 512 MiB free of 60.0 GiB",
        "node2: systemd ends all your processes",
        "loginctl enable-linger ada",
        "the clock of node2 is about 93 s ahead of that of node1",
        "Python 3.11 on node1, Python 3.8 on node2",
        "node2: nvidia-smi gave no answer in 10 s",
    ):
        assert part in seen
    lingering = facts("neglected", linger=True)
    assert not any("systemd" in line for line in planned(lingering).found("warning"))


def test_two_hosts_that_are_one_machine_are_named_both() -> None:
    it = planned(facts("cpu_desk"), facts("cpu_desk"))
    assert it.found("warning") == [
        "None: node1, node2 are one machine, and share its cores and memory → List it once, unless this is intended"
    ]


def test_many_hosts_that_are_one_machine_are_one_warning() -> None:
    it = planned(*[facts("cpu_desk")] * 20)
    [warning] = [line for line in it.found("warning") if "one machine" in line]
    assert warning.startswith("None: node1, node2, ")


def test_a_name_that_resolves_to_loopback_is_only_information() -> None:
    it = planned(facts("cpu_loopback_name"))
    assert it.found("error") == it.found("warning") == []
    assert "laptop resolves to 127.0.1.1" in it.found("info")[0]


def test_errors_come_first() -> None:
    levels = [finding.level for finding in planned(facts("cpu_desk"), facts("neglected")).findings]
    assert levels == sorted(levels, key=["error", "warning", "info"].index)
    assert len(set(levels)) > 1


def test_errors_always_have_a_cure() -> None:
    for path in FOLDER.glob("*.json"):
        for finding in planned(facts(path.stem), facts("no_torch"), launch={"backend": "nccl"}).findings:
            assert finding.cure or finding.level != "error"


def test_sizes_that_do_not_fit_the_ranks_name_their_line() -> None:
    """The hosts decide here how many processes there are, so that the file alone cannot tell."""
    desk = facts("cpu_desk")
    assert planned(desk, parallel={"tp": 2, "dp_replicate": 3}).found("error") == [
        "None: test.yaml:1:131: dp_replicate 3 × tp 2 = 6 does not divide the 8 processes, expected dp_replicate 1, 2 "
        "or 4 → Correct `parallel.dp_replicate`"
    ]
    asked = {"builtin": "bytegpt", "args": ["--pp", "3"]}
    assert planned(desk, job=asked).found("error") == [
        "None: bytegpt: pp 3 does not divide the 8 processes, expected pp 1, 2, 4 or 8 → Set `parallel.pp`, or "
        "correct `job.args`"
    ]
    few = {"builtin": "bytegpt", "args": ["--batch-size", "1"]}
    assert planned(desk, job=few, parallel={"pp": 2}).found("error") == [
        "None: test.yaml:1:143: pp 2 stages need as many micro batches in a step, and there is 1, expected a larger "
        "--batch-size, or --accumulate 2 → Correct `parallel.pp`"
    ]
    offload = {"builtin": "bytegpt", "args": ["--cpu-offload", "yes"]}
    assert planned(desk, job=offload).found("error") == [
        "None: bytegpt: cpu_offload yes is not for ddp, expected fsdp or hsdp without tp, pp → Correct `job.args`"
    ]
    uneven = {"builtin": "bytegpt", "args": ["--global-batch", "3"]}
    assert planned(desk, job=uneven).found("error") == [
        "None: bytegpt: --global-batch 3 cannot be divided over 8 ranks: choose a matching size → Correct `job.args`"
    ]


DS_CONFIG = '{\n\t"train_batch_size": "auto",\n\t"optimizer": {\n\t\t"params": {"lr": "auto"}}}\n'


@pytest.mark.parametrize("words", [["--deepspeed_config", "ds.json"], ["--deepspeed-config=ds.json"]])
def test_auto_in_a_config_that_deepspeed_reads_is_a_warning(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ds.json").write_text(DS_CONFIG)
    job = {"script": "train.py", "workdir": str(tmp_path), "args": ["--deepspeed", *words]}

    def warned(host: str = "node1", launcher: str = "deepspeed", job: dict[str, Any] = job) -> list[str]:
        it = planned(facts("cpu_desk"), hosts=[{"host": host}], launch={"launcher": launcher}, job=job)
        return [text for text in it.found("warning") if "auto in" in text]

    keys = "train_batch_size (line 2), optimizer.params.lr (line 4); DeepSpeed itself"
    [here] = warned("local")
    assert f"local: auto in {tmp_path}/ds.json: {keys} rejects it" in here and "only Trainer" in here
    assert warned() == [], "the host's own is not read"
    monkeypatch.chdir(tmp_path)
    [copy] = warned()
    assert f"auto in {tmp_path}/ds.json, the copy on this machine: {keys}" in copy
    assert warned(launcher="accelerate") == [] and warned(job={**job, "args": ["--deepspeed", "ds.json"]}) == []
    for text in ("{", '["auto"]', DS_CONFIG.replace('"auto"', "1"), "\0"):
        (tmp_path / "ds.json").write_text(text)
        assert warned("local") == []


def rocm(name: str = "cpu_desk") -> HostFacts:
    host = facts(name)
    return replace(
        host, interpreters=tuple(replace(one, torch="2.7.0+rocm6.3", cuda=None) for one in host.interpreters)
    )


def test_torch_for_intels_gpus_is_named() -> None:
    host = facts("cpu_desk")
    found = replace(host, interpreters=tuple(replace(one, torch="2.8.0+xpu", cuda=None) for one in host.interpreters))
    why = planned(found).recommendation.reasons["backend"]
    assert why == "gloo: the torch of node1 is built for Intel's GPUs, which disttui does not detect"


def test_torch_for_rocm_without_a_gpu_says_so_once() -> None:
    it = planned(rocm())
    assert it.recommendation.reasons["backend"] == "gloo: the torch of node1 is built for ROCm, but no GPU was found"
    asked = planned(rocm(), hosts=[{"gpus": [0, 1]}], launch={"backend": "nccl"}, num_processes=2)
    assert asked.found("error") == []
    assert [line for line in asked.found("warning") if "ROCm" in line] == [
        "node1: torch 2.7.0+rocm6.3 is built for ROCm, but no GPU was found → The profile's `gpus` and "
        "`num_processes` are used"
    ]
    assert asked.recommendation.hosts[0].gpus == (0, 1)


def test_torch_for_rocm_with_gpus_uses_them() -> None:
    gpus = tuple(replace(gpu, name="AMD Instinct MI300X", compute_capability="gfx942") for gpu in facts("a100x8").gpus)
    it = planned(replace(rocm("a100x8"), gpus=gpus))
    assert it.recommendation.backend == "nccl" and it.recommendation.precision == "bf16"
    assert not any("CUDA" in line for line in it.found("error"))


def test_memory_that_a_gpu_does_not_report_is_unknown() -> None:
    gpus = tuple(replace(gpu, memory_total=0, memory_used=0) for gpu in facts("a100x8").gpus)
    it = planned(replace(facts("a100x8"), gpus=gpus), parallel={"strategy": "auto"})
    assert "the memory of a GPU is unknown" in it.recommendation.reasons["strategy"]
    assert len(it.recommendation.hosts[0].gpus or ()) == 8
