from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import disttui
from disttui.runner.api.preparing import Prepared, as_run, plan_run
from disttui.runner.api.viewer import Viewer
from disttui.runner.cli.app import cli
from disttui.runner.hosts.facts import read_leases, with_leases
from disttui.runner.node.leases import new_text
from disttui.runner.planning import bytegpt, network
from disttui.runner.planning.interpreter import release
from disttui.runner.planning.processes import free_gpus
from disttui.runner.planning.recommend import recommend
from disttui.runner.profile.load import parse
from disttui.runner.profile.schema import Profile
from tests.unit.planning import FOLDER, facts, planned

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
SCRIPT = {"script": "train.py"}


def test_gpus_free_on_every_host_give_nccl_and_a_rank_each() -> None:
    it = planned(facts("a100x8"), facts("a100x6_busy")).recommendation
    assert (it.backend, it.world_size, it.precision) == ("nccl", 12, "bf16")
    assert [host.gpus for host in it.hosts] == [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 3, 4)]
    assert it.hosts[1].reasons["num_processes"] == (
        "4: 4 of 6 GPUs are free; 2 and 5 are held by alice (python, 11.2 GiB)"
    )


def test_a_host_with_a_quota_offers_no_more_gpus() -> None:
    (host,) = planned(facts("a100x8"), hosts=[{"quota": 3}]).recommendation.hosts
    assert host.gpus == (0, 1, 2)
    assert host.reasons["num_processes"] == "3: 8 GPUs, all free, with a quota of 3 per user"


def test_a_host_without_gpus_for_the_run_says_why() -> None:
    listed = planned(facts("a100x8"), hosts=[{"gpus": []}]).recommendation.reasons["backend"]
    assert listed.startswith("gloo: node1 gets no GPU by the profile"), listed
    one = replace(facts("a100x8"), gpus=facts("a100x8").gpus[:1])
    shared = planned(one, one).recommendation.reasons["backend"]
    assert "leaves its free GPUs to other hosts on that machine" in shared, shared


def test_gpus_that_the_user_holds_count_against_the_quota() -> None:
    def plan(held: list[int] | None, quota: int, kind: str = "run", **more: Any) -> Any:
        mine = {**new_text("mine-1", 0, held, "me@laptop"), "user": "me", "uid": host.euid, "kind": kind}
        mine["run"] = "" if kind == "hand" else mine["run"]
        return planned(with_leases(replace(host, leases=read_leases([mine]))), hosts=[{"quota": quota, **more}])

    def errors(plan: Any) -> list[str]:
        return [line for line in plan.found("error") if "quota" in line]

    host = facts("a100x8")
    one = plan([0, 5], 3)
    assert one.recommendation.hosts[0].gpus == (1,)
    assert "with a quota of 3 per user (you hold 0 and 5)" in one.recommendation.hosts[0].reasons["gpus"]
    assert errors(one) == []
    none = plan([0, 5], 2)
    assert none.recommendation.hosts[0].gpus is None
    assert "node1 has no GPU left in your quota" in none.recommendation.reasons["backend"]
    assert "will be idle" not in none.advice(), "they are not for this user"
    (error,) = errors(none)
    assert error.startswith("node1: this run would exceed the `quota` of 2 GPUs per user: you already hold 0, 5 →")
    (error,) = errors(plan([0, 5], 2, gpus=[1]))
    assert "you already hold 0, 5" in error
    by_hand = plan([4, 5], 2, "hand")
    assert by_hand.recommendation.hosts[0].gpus == (4, 5)
    assert errors(by_hand) == []
    assert errors(plan(None, 2, "hand")), "the whole host has more than its quota"


def test_plan_of_a_queued_run_names_its_gpus_and_their_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = facts("a100x8")
    theirs = {**new_text("llama-7f3a", 0, list(range(8)), "alice@desk"), "user": "alice", "uid": host.euid + 1}
    leased = replace(host, leases=read_leases([theirs]))
    file = tmp_path / "mine.yaml"
    file.write_text("disttui: 1\nhosts: [{host: node1, num_processes: 2}]\njob: {builtin: bytegpt}\n")

    def prepare(viewer: Viewer, profile: Profile, news: object, *, queued: bool) -> Prepared:
        return Prepared(plan_run(profile, [leased], {}, queued=queued), ())

    monkeypatch.setattr(disttui, "prepare", prepare)
    now = CliRunner().invoke(cli, ["profile", "plan", str(file)])
    assert now.exit_code == 3 and "none of its GPUs is free" in now.output
    later = CliRunner().invoke(cli, ["profile", "plan", str(file), "--when-free"])
    assert "none of its GPUs is free" not in later.output
    assert later.output.splitlines()[-1].startswith("waits for node1 GPUs 0, 1, 2, 3, 4, 5, 6, 7: alice's llama-7f3a")
    assert "any 2 of 8 when its turn comes; now 0 of 8 GPUs are free; 0, 1, 2, 3, 4, 5, 6 and 7 are" in later.output
    assert "all free" not in later.output
    file.write_text(file.read_text().replace("num_processes: 2", ""))
    (part,) = plan_run(parse(file.read_text(), "mine.yaml"), [leased], {}, queued=True).plan.hosts
    assert part.reasons["num_processes"] == "8: one per GPU that will be free (8)"
    file.write_text(file.read_text().replace("node1, ", "node1, num_processes: 2"))
    (part,) = plan_run(parse(file.read_text(), "mine.yaml"), [leased], {}, queued=True).plan.hosts
    assert (part.gpus, part.any_of) == ((0, 1), tuple(range(8)))
    listed = file.read_text().replace("num_processes: 2", "gpus: [3]")
    (part,) = plan_run(parse(listed, "mine.yaml"), [leased], {}, queued=True).plan.hosts
    assert (part.gpus, part.any_of) == ((3,), None)


def test_the_built_in_job_with_gloo_gets_no_gpu() -> None:
    """It computes on the CPU there, whatever the profile lists."""
    it = planned(facts("a100x8"), hosts=[{"gpus": [0, 1]}], launch={"backend": "gloo"})
    assert [host.gpus for host in it.recommendation.hosts] == [None]
    assert it.recommendation.precision == "fp32"
    script = planned(
        facts("a100x8"), hosts=[{"gpus": [0, 1]}], launch={"backend": "gloo"}, job={"script": "/x/train.py"}
    )
    assert [host.gpus for host in script.recommendation.hosts] == [(0, 1)]


def test_a_host_without_a_free_gpu_turns_all_to_the_cpu() -> None:
    it = planned(facts("a100x8"), facts("a100_all_busy"))
    [found] = [one for one in it.findings if "the run computes on the CPU" in one.what]
    assert (found.level, found.host) == ("warning", "node2")
    assert found.what.startswith("0 of 1 GPU is free; 0 is held by bob")
    assert it.recommendation.backend == "gloo"
    assert "node2 has no free GPU" in it.recommendation.reasons["backend"]
    assert [host.gpus for host in it.recommendation.hosts] == [None, None]
    assert it.recommendation.precision == "fp32"
    assert "node1: 8 free GPUs will be idle" in it.advice()


def test_a_torch_without_cuda_turns_to_the_cpu() -> None:
    host = facts("a100x8")
    cpu_only = replace(host.interpreters[0], torch="2.13.0+cpu", cuda=None)
    it = planned(replace(host, interpreters=(cpu_only,))).recommendation
    assert it.backend == "gloo"
    assert "torch 2.13.0+cpu, without CUDA" in it.reasons["backend"]


@pytest.mark.parametrize(
    ("name", "processes", "threads", "reason"),
    [
        ("cpu_desk", 8, 1, "8: 8 physical cores"),
        ("cpu_loopback_name", 2, 2, "2: 3.4 GiB of memory at 1.5 GiB for each process; its 4 cores would allow 4"),
        ("cpu_container", 3, 1, "3: 3 physical cores of 64, the rest excluded by affinity or cgroup"),
    ],
)
def test_cpu_processes_follow_cores_and_memory(name: str, processes: int, threads: int, reason: str) -> None:
    host = planned(facts(name)).recommendation.hosts[0]
    assert (host.num_processes, host.omp_num_threads) == (processes, threads)
    assert host.reasons["num_processes"] == reason


def test_the_cgroups_memory_limit_counts() -> None:
    host = facts("cpu_container")
    tight = replace(host, memory=replace(host.memory, limit=4 * 2**30))
    assert planned(tight).recommendation.hosts[0].num_processes == 2


def test_hosts_that_are_one_machine_share_its_cores_and_gpus() -> None:
    desk, box = facts("cpu_desk"), facts("a100x8")
    assert [host.num_processes for host in planned(desk, desk).recommendation.hosts] == [4, 4]
    first, second = planned(box, box).recommendation.hosts
    assert (first.gpus, second.gpus) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_what_the_profile_says_wins() -> None:
    it = planned(
        facts("a100x8"),
        facts("a100x6_busy"),
        hosts=[{"gpus": [3, 1]}, {"num_processes": 2, "interface": "ib0", "env": {"OMP_NUM_THREADS": "5"}}],
        parallel={"strategy": "fsdp"},
        precision="fp32",
        launch={"master": "10.1.0.11"},
    ).recommendation
    first, second = it.hosts
    assert (first.num_processes, first.gpus) == (2, (3, 1))
    assert (second.num_processes, second.gpus, second.interface, second.omp_num_threads) == (2, (0, 1), "ib0", 5)
    assert (it.strategy, it.precision, it.master) == ("fsdp", "fp32", "10.1.0.11")
    assert all("set in the profile" in it.reasons[name] for name in ("strategy", "precision", "master"))


def test_settings_of_a_sandbox_are_not_credited_to_the_profile() -> None:
    profile = as_run(parse("disttui: 1\nhosts: [node1, node2]\njob: {builtin: bytegpt}\n", "x.yaml"), sandbox=True)
    it = recommend(profile, (facts("cpu_desk"), facts("cpu_desk")))
    assert it.reasons["master"] == "127.0.0.1: a sandbox stays on this machine"
    assert it.hosts[0].reasons["python"] == f"{sys.executable}: the one that runs disttui"
    assert it.hosts[0].reasons["interface"].endswith(": a sandbox stays on this machine")


def test_empty_gpu_list_of_a_profile_means_no_gpus() -> None:
    it = planned(facts("a100x8"), hosts=[{"gpus": []}]).recommendation
    assert (it.backend, it.hosts[0].gpus) == ("gloo", None)


def test_interpreter_choice_is_profile_then_activate_then_torch() -> None:
    desk = facts("cpu_desk")
    plain, with_torch = desk.interpreters
    assert planned(desk).recommendation.hosts[0].python == with_torch.path
    activated = replace(desk, interpreters=(replace(plain, path="/env/bin/python", source="activate"), with_torch))
    assert planned(activated, activate="conda activate x").recommendation.hosts[0].python == "/env/bin/python"
    named = replace(desk, interpreters=(replace(plain, path="/home/ada/v/bin/python", source="profile"), with_torch))
    assert planned(named, python="~/v/bin/python").recommendation.hosts[0].python == "/home/ada/v/bin/python"
    wrapped = planned(desk, job={**SCRIPT, "wrap": ["apptainer", "exec", "x.sif"]}).recommendation.hosts[0]
    assert wrapped.python == "python3"
    assert "inside apptainer" in wrapped.reasons["python"]


def test_bf16_needs_compute_capability_8_on_every_gpu() -> None:
    mixed = facts("mixed_gpus")
    it = planned(mixed)
    assert it.recommendation.hosts[0].gpus == (0, 1)
    assert it.recommendation.precision == "fp32"
    assert "GTX 1080 Ti has no bf16 (compute capability 6.1" in it.recommendation.reasons["precision"]
    assert "node1: GPU 2 is skipped: held by hidden programs (3.5 GiB)" in it.advice()
    assert "GPUs of different kinds" in it.advice()
    assert planned(mixed, hosts=[{"gpus": [0]}]).recommendation.precision == "bf16"


def test_a_model_too_big_for_a_rank_is_sharded() -> None:
    big = {"builtin": "bytegpt", "args": ["--layers", "64", "--width", "4096", "--heads", "32"]}
    it = planned(facts("a100x8"), job=big).recommendation
    assert it.strategy == "fsdp"
    assert "more than the 80.0 GiB" in it.reasons["strategy"]
    assert planned(facts("a100x8")).recommendation.strategy == "ddp"
    chosen = planned(facts("a100x8"), job={**big, "args": [*big["args"], "--strategy=ddp"]}).recommendation
    assert chosen.strategy == "ddp"


def test_parameters_are_those_of_the_model() -> None:
    torch = pytest.importorskip("torch")
    from disttui.runner.train.model import Architecture, ByteGPT

    options = bytegpt.read(["--layers", "3", "--width=64"])
    model = ByteGPT(Architecture(layers=3, heads=4, width=64, context=16))
    assert isinstance(model, torch.nn.Module)
    assert bytegpt.parameters(options) == sum(parameter.numel() for parameter in model.parameters())


def test_addresses_exclude_bridges_and_end_with_tunnels() -> None:
    assert network.candidates(facts("vpn_docker")) == (
        "10.20.0.13", "2001:db8:20::13", "10.8.0.6", "100.101.7.9", "fd7a:115c:a1e0::7",
    )  # fmt: skip
    assert network.candidates(facts("ipv6_only")) == ("2001:db8:7::5",)
    host = facts("a100x8")
    assert network.candidates(host) == ("10.0.0.11", "10.1.0.11")
    bridged = replace(host, nics=tuple(replace(nic, name=nic.name.replace("eno1", "br-ex")) for nic in host.nics))
    assert network.candidates(bridged) == ("10.0.0.11", "10.1.0.11"), "of OpenStack, unlike those of Docker"


def test_the_master_is_an_address_of_the_first_host() -> None:
    both = (facts("vpn_docker"), facts("cpu_desk"))
    assert planned(*both).recommendation.master == "10.20.0.13"
    assert planned(*both, launch={"master": "node1"}).recommendation.master == "10.20.0.13"
    it = planned(*both, hosts=[{"address": "10.8.0.6"}, {}])
    assert it.recommendation.master == it.plan.spec(0, "r-1")["master"] == "10.8.0.6"
    assert planned(facts("vpn_docker")).recommendation.master == "127.0.0.1"


def test_more_processes_than_cores_is_reported() -> None:
    it = planned(facts("cpu_desk"), num_processes=12)
    assert "node1: 12 processes for 8 physical cores" in it.advice()
    assert it.recommendation.hosts[0].omp_num_threads == 1
    assert "physical cores" not in planned(facts("cpu_desk")).advice()


def test_a_second_machine_that_is_not_needed_is_reported() -> None:
    both = (facts("cpu_desk"), facts("neglected"))
    assert "node1 alone has 8 physical cores for all 2 processes" in planned(*both, num_processes=1).advice()
    assert "is small for 2 hosts" in planned(*both).advice()
    assert "is small" not in planned(*both, job=SCRIPT).advice()
    assert "is small" not in planned(both[0], both[0]).advice()
    assert "alone has" not in planned(facts("a100x8"), facts("a100x6_busy")).advice()


def test_the_global_batch_is_reported_with_its_numbers() -> None:
    both = (facts("cpu_desk"), facts("cpu_container"))
    args = ["--batch-size", "4", "--accumulate", "2"]
    seen = "4 (--batch-size) × 2 (--accumulate) × 11 ranks = 88; on node1 alone it would be 64"
    assert seen in planned(*both, job={"builtin": "bytegpt", "args": args}).advice()
    for settled in (["--global-batch", "88"], ["--lr-scaling", "sqrt"]):
        assert "global batch" not in planned(*both, job={"builtin": "bytegpt", "args": settled}).advice()
    # A script may divide its batch by the number of ranks, as nanoGPT does.
    assert "if each rank has its own batch, the global batch grows" in planned(*both, job=SCRIPT).advice()
    assert "global batch" not in planned(facts("cpu_desk")).advice()


def test_different_versions_and_gpus_are_reported_with_both() -> None:
    advice = planned(facts("a100x8"), facts("mixed_gpus")).advice()
    assert "different torch: 2.8.0+cu128 on node1, 2.7.1+cu126 on node2" in advice
    assert "different NCCL: 2.27.3 on node1, 2.26.2 on node2" in advice
    assert "different GPUs: NVIDIA A100-SXM4-80GB on node1" in advice


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_its_reason(name: str) -> None:
    it = planned(facts(name), facts("cpu_desk"))
    for field in ("backend", "strategy", "precision", "world_size", "master"):
        assert it.recommendation.reasons[field].startswith(str(getattr(it.recommendation, field)))
    for host in it.recommendation.hosts:
        assert host.reasons["num_processes"].startswith(f"{host.num_processes}: ")
        assert host.reasons["omp_num_threads"].startswith(f"{host.omp_num_threads}: ")
        assert all(host.reasons[name] for name in ("gpus", "python", "interface", "addresses"))


@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True),
    counts=st.lists(st.none() | st.integers(1, 40), min_size=5, max_size=5),
    backend=st.sampled_from(["auto", "gloo"]),
)
def test_counts_add_up_and_nobody_elses_gpu_is_taken(names: list[str], counts: list[int | None], backend: str) -> None:
    found = [facts(name) for name in names]
    hosts = [{"num_processes": count} if count else {} for count in counts[: len(names)]]
    it = planned(*found, hosts=hosts, launch={"backend": backend})
    assert it.recommendation.world_size == sum(host.num_processes for host in it.recommendation.hosts)
    rank = 0
    for choice, host, one in zip(it.recommendation.hosts, it.plan.hosts, found, strict=True):
        assert choice.num_processes >= 1
        assert host.first_rank == rank
        rank += host.num_processes
        if choice.gpus is not None:
            assert set(choice.gpus) <= {gpu.index for gpu in free_gpus(one)}
            assert len(choice.gpus) == choice.num_processes or it.found("error")
    assert rank == it.plan.world_size


def test_words() -> None:
    assert [release("2.13.0+cpu"), release("8.0"), release("")] == [(2, 13), (8, 0), (0, 0)]


def test_layout_states_its_total_and_what_stays_inside_hosts() -> None:
    desk, far = facts("cpu_desk"), facts("cpu_desk", boot_id="another")
    it = planned(desk, far, num_processes=4, parallel={"dp_replicate": 2, "dp_shard": 2, "tp": 2})
    assert it.recommendation.reasons["layout"] == (
        "dp_replicate 2 × dp_shard 2 × tp 2 = 8: tp and dp_shard inside hosts, dp_replicate between hosts"
    )
    assert it.recommendation.strategy == "hsdp"
    sizes = ("--dp-replicate", "2", "--dp-shard", "2", "--tp", "2")
    assert it.plan.job_args[:8] == ("--strategy", "hsdp", *sizes)
    assert not it.found("error")
    assert "× 4 data-parallel ranks = 32" in it.advice()
    assert "layout" not in planned(desk, job=SCRIPT).recommendation.reasons


def test_hsdp_shards_inside_each_host() -> None:
    it = planned(facts("cpu_desk"), facts("cpu_desk", boot_id="b"), num_processes=4, parallel={"strategy": "hsdp"})
    assert it.plan.job_args[:6] == ("--strategy", "hsdp", "--dp-replicate", "2", "--dp-shard", "4")


def test_model_too_big_for_a_rank_is_sharded_inside_each_host() -> None:
    big = {"builtin": "bytegpt", "args": ["--layers", "48", "--width", "4096", "--heads", "32"]}
    box = facts("a100x8")
    it = planned(box, replace(box, boot_id="another"), job=big).recommendation
    assert it.strategy == "hsdp"
    assert "dp_replicate 2 × dp_shard 8 = 16: dp_shard inside hosts" in it.reasons["layout"]
    cut = planned(box, replace(box, boot_id="another"), job=big, parallel={"tp": 8}).recommendation
    assert cut.strategy == "ddp"
    assert "cut into 8 by tp and pp" in cut.reasons["strategy"]


def test_tensor_parallel_across_hosts_warns_with_its_cost() -> None:
    desk, far = facts("cpu_desk"), facts("cpu_desk", boot_id="another")
    it = planned(desk, far, num_processes=3, parallel={"tp": 2})
    # 8 transfers a layer × 4 layers × 8 samples × 128 bytes × width 128 × 4 bytes, of which each rank sends half
    assert (
        "tp 2 crosses hosts (ranks 2 and 3): each of them sends 8.4 MB a step through the network and waits for it, "
        "0.067 s at the slowest interface's 1 Gbit/s. Have every host run a multiple of 2 processes"
    ) in it.advice()
    assert not it.found("error")
    assert "tp 2 crosses" not in planned(desk, far, num_processes=4, parallel={"tp": 2}).advice()


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"sync_interval": 8}, ["--sync-interval", "8"]), ({"compress": "powersgd"}, ["--compress", "powersgd"])],
)
def test_slow_link_options_reach_the_job_and_keep_ddp(asked: dict[str, object], words: list[str]) -> None:
    large = {"builtin": "bytegpt", "args": ["--layers", "96", "--width", "8192"]}
    it = planned(facts("a100x8"), facts("a100x8"), job=large, parallel=asked, precision="fp16")
    assert it.recommendation.strategy == "ddp"
    assert "is for copies of the whole model" in it.recommendation.reasons["strategy"]
    args = list(it.plan.job_args)
    assert args[args.index(words[0]) :][:2] == words
    assert args[args.index("--precision") + 1] == "fp16"
