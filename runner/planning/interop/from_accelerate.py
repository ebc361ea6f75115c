"""A configuration of `accelerate config` → a draft of a profile."""

from __future__ import annotations

from runner.planning.interop import accelerate_variables as variables
from runner.planning.interop.draft import Machine, Translation, count, shown
from runner.profile.addresses import is_ip
from runner.profile.nodes import MappingNode, ScalarNode
from runner.profile.problems import SourceLocation
from runner.profile.schema import MOST_HOSTS

_GPU_TYPES = ("MULTI_GPU", "FSDP", "DEEPSPEED", "NO")
_ON_GPUS = "of machines that disttui does not use"
_UNUSED = {
    "tpu_name": _ON_GPUS,
    "tpu_zone": _ON_GPUS,
    "tpu_use_cluster": _ON_GPUS,
    "tpu_use_sudo": _ON_GPUS,
    "tpu_env": _ON_GPUS,
    "tpu_vm": _ON_GPUS,
    "tpu_downcast_bf16": _ON_GPUS,
    "downcast_bf16": _ON_GPUS,
    "commands": _ON_GPUS,
    "command_file": _ON_GPUS,
    "main_training_function": "the script is started as it is",
    "rdzv_backend": "disttui brings the hosts together itself",
    "same_network": "disttui finds out which addresses the hosts reach",
    "mpirun_config": "for its hosts: disttui import HOSTFILE",
}
"""Keys without a counterpart, and why."""
_USUAL = {"main_training_function": "main", "rdzv_backend": "static", "same_network": "true", "downcast_bf16": "no"}
"""What a key says where it says nothing."""


def read(root: MappingNode, draft: Translation) -> None:
    """Take over every key."""
    _Reader(root, draft).read()


class _Reader:
    def __init__(self, root: MappingNode, draft: Translation) -> None:
        self._root, self._draft = root, draft

    def read(self) -> None:
        draft = self._draft
        place, kind = self._scalar("distributed_type")
        _, cpu = self._scalar("use_cpu")
        draft.launch["launcher"] = "accelerate"
        draft.translated(0, "launch.launcher", "accelerate: torchrun, with the variables that Accelerate reads")
        self._refuse_other_machines()
        if kind not in (*_GPU_TYPES, "MULTI_CPU"):
            known = ", ".join((*_GPU_TYPES, "MULTI_CPU"))
            what = f"distributed_type: {shown(kind)}" if kind else "there is no distributed_type"
            expected = f"expected one of {known}: disttui runs on GPUs by NCCL, or on CPUs"
            draft.wrong(place.line, place.column, what, expected)
        self._backend(place.line, kind, on_cpu=kind == "MULTI_CPU" or cpu.lower() == "true")
        self._counts(kind)
        self._master()
        for key, (place, node) in self._root.entries.items():
            if key in ("distributed_type", "use_cpu", "compute_environment", "num_machines", "num_processes"):
                continue
            if key in ("machine_rank", "main_process_ip", "main_process_port"):
                continue
            self._other(place.line, key, node)

    def _scalar(self, key: str) -> tuple[SourceLocation, str]:
        """Where a value stands, and its text; empty where there is none."""
        place, node = self._root.entries.get(key, (self._root.place, None))
        if node is None or (isinstance(node, ScalarNode) and node.is_null):
            return place, ""
        if isinstance(node, ScalarNode):
            return place, node.text
        self._draft.wrong(place.line, place.column, f"{key}: this is no single value", "expected one")
        return place, ""

    def _refuse_other_machines(self) -> None:
        place, where = self._scalar("compute_environment")
        if where not in ("", "LOCAL_MACHINE"):
            what = f"compute_environment: {shown(where)}"
            expected = "expected LOCAL_MACHINE: disttui runs on hosts reached by SSH"
            self._draft.wrong(place.line, place.column, what, expected)
        elif where:
            self._draft.dropped(place.line, "compute_environment", "disttui runs here and on hosts reached by SSH")

    def _backend(self, line: int, kind: str, *, on_cpu: bool) -> None:
        draft = self._draft
        backend = "gloo" if on_cpu else "nccl"
        if kind != "NO" or on_cpu:
            draft.launch["backend"] = backend
            draft.translated(line, "distributed_type", f"{kind} → launch.backend: {backend}")
        else:
            draft.translated(line, "distributed_type", "NO → num_processes: 1")
        if "use_cpu" in self._root.entries:
            place, text = self._scalar("use_cpu")
            chosen = draft.launch.get("backend", "auto")
            draft.translated(place.line, "use_cpu", f"{shown(text)} → launch.backend: {chosen}")

    def _counts(self, kind: str) -> None:
        """`num_processes` is the total of all machines."""
        draft = self._draft
        at_machines, machines_text = self._scalar("num_machines")
        at_total, total_text = self._scalar("num_processes")
        machines = count(draft, at_machines.line, "num_machines", machines_text or "1", MOST_HOSTS)
        most = 1024 * MOST_HOSTS
        total = count(draft, at_total.line, "num_processes", total_text, most) if total_text else None
        if machines is None or (total_text and total is None):
            return
        draft.wanted, draft.wanted_by = machines, (at_machines.line, "num_machines")
        if kind == "NO" and (total or 1) != 1:
            expected = "expected num_processes: 1, or MULTI_GPU as distributed_type"
            draft.wrong(at_total.line, at_total.column, f"num_processes: {total} with distributed_type: NO", expected)
            return
        if kind == "NO":
            total = 1
        if machines == 1 and not self._other_rank():
            draft.hosts = [Machine("local")]
            draft.translated(at_machines.line, "num_machines", "1 → one host: local, or what --host names")
        elif machines > 1:
            draft.translated(at_machines.line, "num_machines", f"{machines} → {machines} hosts")
        if total is None:
            draft.ambiguous(at_total.line, "num_processes", "not given → auto: one for each GPU, or each core")
        elif total % machines:
            what = f"num_processes: {total} is the total, and {machines} machines cannot share it equally"
            near = max(machines, total - total % machines)
            expected = f"expected a multiple, like {near}; for unequal hosts import a hostfile, with slots for each"
            draft.wrong(at_total.line, at_total.column, what, expected)
        else:
            draft.num_processes = total // machines
            each = f"{total} in all, on {machines} machine{'s' if machines > 1 else ''}"
            if total_text:
                what = f"{each} → num_processes: {draft.num_processes} per host"
                draft.translated(at_total.line, "num_processes", what)

    def _other_rank(self) -> bool:
        """Whether this is the file of another machine than the first."""
        _, rank = self._scalar("machine_rank")
        return bool(rank) and rank != "0"

    def _master(self) -> None:
        draft = self._draft
        several = draft.wanted > 1
        if "machine_rank" in self._root.entries:
            place, rank = self._scalar("machine_rank")
            if not (rank.isascii() and rank.isdigit() and len(rank) < 6):
                draft.wrong(place.line, place.column, f"machine_rank: {shown(rank)}", "expected a whole number from 0")
            elif draft.wanted and int(rank) >= draft.wanted:
                expected = f"expected 0 to {draft.wanted - 1}, with num_machines: {draft.wanted}"
                draft.wrong(place.line, place.column, f"machine_rank: {rank}", expected)
            elif int(rank):
                what = f"{rank}: the file of another machine than the first; a profile is the same for all"
                draft.ambiguous(place.line, "machine_rank", what)
            else:
                draft.dropped(place.line, "machine_rank", "0: a profile is the same for all machines")
        self._address(several=several)
        self._port(several=several)

    def _address(self, *, several: bool) -> None:
        draft = self._draft
        place, address = self._scalar("main_process_ip")
        if address and several:
            draft.hosts = [Machine(address)]
            what = f"{shown(address)} → the first host, where no --host is given"
            if is_ip(address):
                draft.launch["master"] = address
                what += ", and launch.master"
            draft.translated(place.line, "main_process_ip", what)
        elif "main_process_ip" in self._root.entries:
            draft.dropped(place.line, "main_process_ip", "there is one machine" if address else "empty")

    def _port(self, *, several: bool) -> None:
        draft = self._draft
        place, text = self._scalar("main_process_port")
        if not text or not several:
            if "main_process_port" in self._root.entries:
                draft.dropped(place.line, "main_process_port", "there is one machine" if text else "empty")
        elif (port := count(draft, place.line, "main_process_port", text, 65535)) is not None:
            if 1024 <= port <= 65436:
                draft.launch["ports"] = f"{port}-{port + 99}"
                draft.translated(place.line, "main_process_port", f"{port} → launch.ports: the first free of 100")
            else:
                draft.dropped(place.line, "main_process_port", f"{port}: disttui takes a range of ports from 1024 on")

    def _other(self, line: int, key: str, node: object) -> None:
        """A key that changes nothing about hosts and counts."""
        draft = self._draft
        if key in variables.SECTIONS or key in ("fp8_config", "megatron_lm_config"):
            self._section(line, key, node)
            return
        text = node.text if isinstance(node, ScalarNode) else ""
        if key == "mixed_precision":
            self._precision(line, text)
        elif key == "gpu_ids":
            self._gpus(line, text)
        elif key in ("debug", "enable_cpu_affinity"):
            name, value = (variables.DEBUG, "true") if key == "debug" else (variables.CPU_AFFINITY, "1")
            if text.lower() == "true":
                draft.env[name] = value
                draft.translated(line, key, f"true → job.env: {name}")
            else:
                draft.dropped(line, key, "the default")
        elif key in _UNUSED:
            usual = text.lower() in (_USUAL.get(key, ""), "", "false")
            draft.dropped(line, key, "the default" if usual else f"{shown(text)}: {_UNUSED[key]}")
        else:
            draft.ambiguous(line, key, "not known here; dropped")

    def _precision(self, line: int, text: str) -> None:
        if text in ("no", ""):
            self._draft.dropped(line, "mixed_precision", "the default")
        elif text in ("fp16", "bf16", "fp8"):
            self._draft.env[variables.MIXED_PRECISION] = text
            self._draft.translated(line, "mixed_precision", f"{text} → job.env: {variables.MIXED_PRECISION}")
        else:
            self._draft.wrong(line, 1, f"mixed_precision: {shown(text)}", "expected no, fp16, bf16 or fp8")

    def _gpus(self, line: int, text: str) -> None:
        draft = self._draft
        parts = [part.strip() for part in text.split(",")]
        if text in ("all", ""):
            draft.dropped(line, "gpu_ids", "all: the GPUs that nobody uses")
        elif draft.wanted != 1:
            what = f"{shown(text)} is of one machine, and the file is used for {draft.wanted}: dropped"
            draft.ambiguous(line, "gpu_ids", f"{what}; write gpus: […] beside each host")
        elif all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
            draft.gpus = tuple(map(int, parts))
            draft.translated(line, "gpu_ids", f"→ hosts.0.gpus: [{', '.join(map(str, draft.gpus))}]")
        else:
            draft.wrong(line, 1, f"gpu_ids: {shown(text)}", "expected all, or indices like 0,1")

    def _section(self, line: int, key: str, node: object) -> None:
        """Settings that a script gets by variables."""
        draft, known = self._draft, variables.SECTIONS.get(key)
        entries = node.entries if isinstance(node, MappingNode) else {}
        if not entries:
            draft.dropped(line, key, "empty")
            return
        if known is None:
            draft.ambiguous(line, key, "has no counterpart; dropped: `accelerate launch` gives it to the script")
            return
        if switch := variables.SWITCHES.get(key):
            draft.env[switch] = "true"
            draft.translated(line, key, f"→ job.env: {switch}")
        for name, (place, value) in entries.items():
            variable = known.get(name)
            if variable is None or not isinstance(value, ScalarNode):
                draft.ambiguous(place.line, f"{key}.{name}", "not known here; dropped")
            elif not value.is_null:
                lowered = value.text.lower() if value.plain and value.text.lower() in ("true", "false") else value.text
                draft.env[variable] = lowered
                draft.translated(place.line, f"{key}.{name}", f"{shown(value.text)} → job.env: {variable}")
