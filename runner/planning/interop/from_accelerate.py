"""Translates a file of `accelerate config` to a draft of a profile."""

from __future__ import annotations

import re
from functools import partial

from disttui.runner.formatting import amount
from disttui.runner.hosts.discovery import flaw_of
from disttui.runner.planning.interop.draft import Machine, Translation, count, shown
from disttui.runner.profile.fields import is_ip
from disttui.runner.profile.nodes import MappingNode, Node, ScalarNode, SequenceNode
from disttui.runner.profile.problems import SourceLocation
from disttui.runner.profile.schema import MOST_HOSTS

MIXED_PRECISION = "ACCELERATE_MIXED_PRECISION"
DEBUG = "ACCELERATE_DEBUG_MODE"
CPU_AFFINITY = "ACCELERATE_CPU_AFFINITY"

_DEEPSPEED = {
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_optimizer_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "offload_param_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
}
_OF_THE_LAUNCHER = (
    "deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter", "deepspeed_multinode_launcher",
)  # fmt: skip
_FILTER = re.compile(r"([^:@\s]+)(?::(\d{1,4}(?:,\d{1,4})*))?")
"""A host of an inclusion filter, and its GPUs."""
_DYNAMO = ("backend", "mode", "use_dynamic", "use_fullgraph", "use_regional_compilation")
_FSDP = (
    "activation_checkpointing", "activation_checkpointing_offload", "auto_wrap_policy", "backward_prefetch",
    "cpu_ram_efficient_loading", "forward_prefetch", "ignored_modules", "min_num_params", "offload_params",
    "reshard_after_forward", "sharding_strategy", "state_dict_type", "sync_module_states", "use_orig_params", "version",
)  # fmt: skip
_PARALLELISM = (
    "cp_backend", "cp_comm_strategy", "cp_size", "dp_replicate_size", "dp_shard_size", "sp_attn_implementation",
    "sp_backend", "sp_seq_length", "sp_seq_length_is_variable", "sp_size", "tp_size",
)  # fmt: skip

SECTIONS = {
    "deepspeed_config": _DEEPSPEED,
    "dynamo_config": {f"dynamo_{name}": f"ACCELERATE_DYNAMO_{name.upper()}" for name in _DYNAMO},
    "fsdp_config": {
        **{f"fsdp_{name}": f"FSDP_{name.upper()}" for name in _FSDP},
        "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
        "fsdp_backward_prefetch_policy": "FSDP_BACKWARD_PREFETCH",  # its former name
    },
    "parallelism_config": {f"parallelism_config_{n}": f"PARALLELISM_CONFIG_{n.upper()}" for n in _PARALLELISM},
}
"""Section → key → variable."""
SWITCHES = {
    "deepspeed_config": "ACCELERATE_USE_DEEPSPEED",
    "fsdp_config": "ACCELERATE_USE_FSDP",
    "parallelism_config": "ACCELERATE_USE_PARALLELISM_CONFIG",
}
"""Section → the variable that enables it."""


def variable_of(option: str) -> str | None:
    """Return the variable of an option of `accelerate launch`, given without dashes, or None."""
    if option == "mixed_precision":
        return MIXED_PRECISION
    if option in ("use_fsdp", "use_deepspeed"):
        return SWITCHES[f"{option.removeprefix('use_')}_config"]
    return next((keys[option] for keys in SECTIONS.values() if option in keys), None)


_TYPES = ("MULTI_GPU", "FSDP", "DEEPSPEED", "NO", "MULTI_CPU")
_UNUSED = {
    **dict.fromkeys(
        (
            "tpu_name",
            "tpu_zone",
            "tpu_use_cluster",
            "tpu_use_sudo",
            "tpu_env",
            "tpu_vm",
            "tpu_downcast_bf16",
            "downcast_bf16",
            "commands",
            "command_file",
        ),
        "for machines that disttui does not support",
    ),
    "main_training_function": "disttui does not change the script",
    "rdzv_backend": "disttui connects the hosts",
    "same_network": "disttui finds reachable addresses",
}
"""Keys without a counterpart, and why."""
_USUAL = {"main_training_function": "main", "rdzv_backend": "static", "same_network": "true", "downcast_bf16": "no"}
"""Values that equal the default and need no note."""
_READ_BEFORE = ("distributed_type", "use_cpu", "compute_environment", "num_machines", "num_processes", "machine_rank",
                "main_process_ip", "main_process_port")  # fmt: skip


class AccelerateReader:
    """Translates each key of the file.

    Args:
        hosts: Number of --host options.
    """

    def __init__(self, root: MappingNode, draft: Translation, hosts: int) -> None:
        self._root, self._draft, self._hosts = root, draft, hosts

    def read(self) -> None:
        """Translate the file into the draft."""
        draft = self._draft
        place, kind = self._scalar("distributed_type")
        _, cpu = self._scalar("use_cpu")
        draft.launch["launcher"] = "accelerate"
        draft.translated(0, "launch.launcher", "accelerate: torchrun, with the variables that Accelerate reads")
        self._refuse_other_machines()
        if kind not in _TYPES:
            what = f"distributed_type: {shown(kind)}" if kind else "distributed_type is missing"
            expected = f"expected one of {', '.join(_TYPES)}: disttui supports GPUs with NCCL, and CPUs"
            draft.wrong(place.line, place.column, what, expected)
        self._backend(place.line, kind, on_cpu=kind == "MULTI_CPU" or cpu.lower() == "true")
        self._counts(kind)
        self._rank()
        self._address()
        self._port()
        for key, (place, node) in self._root.entries.items():
            if key not in _READ_BEFORE:
                self._other(place.line, key, node)

    def _scalar(self, key: str) -> tuple[SourceLocation, str]:
        """Return a key's location and text; the text is "" if the key is missing, null or not a scalar."""
        place, node = self._root.entries.get(key, (self._root.place, None))
        if node is None or (isinstance(node, ScalarNode) and node.is_null):
            return place, ""
        if isinstance(node, ScalarNode):
            return place, node.text
        self._draft.wrong(place.line, place.column, f"{key}: not a single value", "expected one")
        return place, ""

    def _refuse_other_machines(self) -> None:
        place, where = self._scalar("compute_environment")
        if where not in ("", "LOCAL_MACHINE"):
            expected = "expected LOCAL_MACHINE: disttui runs on hosts over SSH"
            self._draft.wrong(place.line, place.column, f"compute_environment: {shown(where)}", expected)
        elif where:
            self._draft.dropped(place.line, "compute_environment", "disttui runs here and over SSH")

    def _backend(self, line: int, kind: str, *, on_cpu: bool) -> None:
        draft = self._draft
        if kind != "NO" or on_cpu:
            draft.launch["backend"] = "gloo" if on_cpu else "nccl"
        backend = f"launch.backend: {draft.launch.get('backend', 'auto')}"
        become = "num_processes: 1" if kind == "NO" and not on_cpu else backend
        draft.translated(line, "distributed_type", f"{kind} → {become}")
        if "use_cpu" in self._root.entries:
            place, text = self._scalar("use_cpu")
            draft.translated(place.line, "use_cpu", f"{shown(text)} → {backend}")

    def _counts(self, kind: str) -> None:
        """Translate the counts; Accelerate's `num_processes` is the total of all machines."""
        draft = self._draft
        at_machines, machines_text = self._scalar("num_machines")
        at_total, total_text = self._scalar("num_processes")
        given = machines_text or str(max(1, self._hosts))
        machines = count(draft, at_machines.line, "num_machines", given, MOST_HOSTS)
        most = 1024 * MOST_HOSTS
        total = count(draft, at_total.line, "num_processes", total_text, most) if total_text else None
        if machines is None or (total_text and total is None):
            return
        draft.wanted, draft.wanted_by = machines, (at_machines.line if machines_text else 0, "num_machines")
        if kind == "NO" and (total or 1) != 1:
            what = f"{total} with distributed_type: NO: accelerate launch starts one process; MULTI_GPU starts {total}"
            draft.ambiguous(at_total.line, "num_processes", what)
            total_text = ""
        if kind == "NO":
            total = 1
            if machines > 1:
                self._refuse_one_process(
                    f"num_machines is {machines}" if machines_text else f"--host: {machines} hosts"
                )
                return
        line, given = draft.wanted_by[0], str(machines) if machines_text else "not given"
        if machines == 1 and self._scalar("machine_rank")[1] in ("", "0"):
            draft.hosts = [Machine("local")]
            draft.translated(line, "num_machines", f"{given} → one host: local, or what --host names")
        elif machines > 1:
            draft.translated(line, "num_machines", f"{given} → {machines} hosts")
        if total is None:
            draft.ambiguous(at_total.line, "num_processes", "not given → auto: one per GPU or core")
        elif total % machines:
            what = f"num_processes: {total} is the total, not a multiple of {machines} machines"
            near = max(machines, total - total % machines)
            expected = f"expected a multiple, like {near}; for unequal hosts import a hostfile, with slots for each"
            draft.wrong(at_total.line, at_total.column, what, expected)
        else:
            draft.num_processes = total // machines
            if total_text:
                what = f"{total} in all, on {amount(machines, 'machine')} → num_processes: {total // machines} per host"
                draft.translated(at_total.line, "num_processes", what)

    def _refuse_one_process(self, given: str) -> None:
        place, _ = self._scalar("distributed_type")
        what = f"distributed_type: NO is one process, and {given}"
        expected = "expected one host, or MULTI_GPU or MULTI_CPU as distributed_type"
        self._draft.wrong(place.line, place.column, what, expected)

    def _rank(self) -> None:
        draft = self._draft
        place, rank = self._scalar("machine_rank")
        if not rank:
            if "machine_rank" in self._root.entries:
                draft.dropped(place.line, "machine_rank", "empty")
        elif not (rank.isascii() and rank.isdigit() and len(rank) < 6):
            draft.wrong(place.line, place.column, f"machine_rank: {shown(rank)}", "expected a whole number from 0")
        elif draft.wanted and int(rank) >= draft.wanted:
            expected = f"expected 0 to {draft.wanted - 1}, with num_machines: {draft.wanted}"
            draft.wrong(place.line, place.column, f"machine_rank: {rank}", expected)
        elif int(rank):
            what = f"{rank}: not the first machine's file; a profile is for all machines"
            draft.ambiguous(place.line, "machine_rank", what)
        else:
            draft.dropped(place.line, "machine_rank", "0: a profile is for all machines")

    def _address(self) -> None:
        draft = self._draft
        place, address = self._scalar("main_process_ip")
        if draft.wanted > 1 and (address.lower() == "localhost" or address.startswith("127.") or address == "::1"):
            what = f"{address} means each machine itself: dropped; the first host is the master"
            draft.ambiguous(place.line, "main_process_ip", what)
        elif address and draft.wanted > 1:
            draft.hosts = [Machine(address)]
            what = f"{shown(address)} → the first host, without --host"
            if is_ip(address):
                draft.launch["master"] = address
                what += ", and launch.master"
            draft.translated(place.line, "main_process_ip", what)
        elif "main_process_ip" in self._root.entries:
            draft.dropped(place.line, "main_process_ip", "only one machine" if address else "empty")

    def _port(self) -> None:
        draft = self._draft
        place, text = self._scalar("main_process_port")
        if not text or draft.wanted <= 1:
            if "main_process_port" in self._root.entries:
                draft.dropped(place.line, "main_process_port", "only one machine" if text else "empty")
        elif (port := count(draft, place.line, "main_process_port", text, 65535)) is not None:
            if 1024 <= port <= 65436:
                draft.launch["ports"] = f"{port}-{port + 99}"
                draft.translated(place.line, "main_process_port", f"{port} → launch.ports: the first free of 100")
            else:
                draft.dropped(place.line, "main_process_port", f"{port}: disttui uses a range of ports above 1023")

    def _other(self, line: int, key: str, node: Node) -> None:
        """Translate a key that does not affect hosts and counts."""
        draft = self._draft
        if key in SECTIONS or key in ("fp8_config", "megatron_lm_config"):
            self._section(line, key, node)
            return
        text = node.text if isinstance(node, ScalarNode) and not node.is_null else ""
        if key in ("mixed_precision", "fp16"):
            self._precision(line, key, text)
        elif key == "dynamo_backend":  # now a key of dynamo_config
            self._section(line, "dynamo_config", MappingNode(node.place, {key: (node.place, node)}))
        elif key == "gpu_ids":
            items = node.items if isinstance(node, SequenceNode) else (node,)
            given = (one.text for one in items if isinstance(one, ScalarNode) and not one.is_null)
            self._gpus(line, ",".join(given))
        elif key in ("debug", "enable_cpu_affinity"):
            name, value = (DEBUG, "true") if key == "debug" else (CPU_AFFINITY, "1")
            if text.lower() == "true":
                draft.env[name] = value
                draft.translated(line, key, f"true → job.env: {name}")
            else:
                draft.dropped(line, key, "the default")
        elif key == "mpirun_config":
            self._mpirun(line, node)
        elif key in _UNUSED:
            filled = (isinstance(node, MappingNode) and node.entries) or (isinstance(node, SequenceNode) and node.items)
            usual = not filled and text.lower() in (_USUAL.get(key, ""), "", "false")
            draft.dropped(line, key, "the default" if usual else f"{shown(text) if text else '…'}: {_UNUSED[key]}")
        else:
            draft.ambiguous(line, key, "unknown; dropped")

    def _mpirun(self, line: int, node: Node) -> None:
        entries = node.entries if isinstance(node, MappingNode) else {}
        for name, (place, value) in entries.items():
            text = shown(value.text) if isinstance(value, ScalarNode) else "…"
            if name == "mpirun_hostfile":
                what = f"{text} names the hosts: disttui profile import {text}, or --host for each"
                self._draft.ambiguous(place.line, f"mpirun_config.{name}", f"{what}; launch.launcher: mpirun")
            else:
                self._draft.dropped(place.line, f"mpirun_config.{name}", f"{text}: set it in job.env if needed")
        if not entries:
            self._draft.dropped(line, "mpirun_config", "empty")

    def _deepspeed_launcher(self, line: int, name: str, text: str) -> None:
        """Translate an option of DeepSpeed's own launcher, which is not passed to the script."""
        draft, label = self._draft, f"deepspeed_config.{name}"
        if name == "deepspeed_inclusion_filter" and text not in ("", "null"):
            parts = [_FILTER.fullmatch(part) for part in text.split("@")]
            found = [
                Machine(part[1], part[2].count(",") + 1, tuple(map(int, part[2].split(","))))
                if part[2]
                else Machine(part[1])
                for part in parts
                if part and not flaw_of(part[1])
            ]
            if len(found) < len(parts) or (
                draft.wanted and self._scalar("num_machines")[1] and len(found) != draft.wanted
            ):
                draft.ambiguous(line, label, f"{shown(text)}: write hosts, and gpus: […] beside each; dropped")
            elif self._hosts:
                known = {one.num_processes for one in found} == {draft.num_processes}
                note = draft.ambiguous if known else partial(draft.guess, "processes")
                note(line, label, f"{shown(text)}: overridden by --host; write gpus: […] beside each host")
            else:
                draft.hosts, draft.wanted = found, len(found)
                draft.translated(line, label, "→ hosts, with the gpus and processes of each")
        elif name == "deepspeed_hostfile" and text not in ("", "null"):
            what = f"{shown(text)} names the hosts: disttui profile import {shown(text)}, or --host for each"
            draft.ambiguous(line, label, what)
        elif name == "deepspeed_exclusion_filter" and text not in ("", "null"):
            draft.ambiguous(line, label, f"{shown(text)}: write gpus: […] beside each host; dropped")
        else:
            draft.dropped(line, label, "disttui starts the ranks")

    def _precision(self, line: int, key: str, text: str) -> None:
        if key == "fp16" and "mixed_precision" in self._root.entries:
            self._draft.dropped(line, key, "overridden by mixed_precision")
            return
        if key == "fp16":  # the name in Accelerate's first releases
            text = "fp16" if text.lower() == "true" else "no"
        if text in ("no", ""):
            self._draft.dropped(line, key, "the default")
        elif text in ("fp16", "bf16", "fp8"):
            self._draft.env[MIXED_PRECISION] = text
            self._draft.translated(line, key, f"{text} → job.env: {MIXED_PRECISION}")
        else:
            self._draft.wrong(line, 1, f"mixed_precision: {shown(text)}", "expected no, fp16, bf16 or fp8")

    def _gpus(self, line: int, text: str) -> None:
        draft = self._draft
        parts = [part.strip() for part in text.split(",")]
        if text in ("all", ""):
            draft.dropped(line, "gpu_ids", "all: free GPUs")
        elif draft.wanted != 1:
            what = f"{shown(text)} is for one machine, but the file is used for {draft.wanted}: dropped"
            draft.ambiguous(line, "gpu_ids", f"{what}; write gpus: […] beside each host")
        elif all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
            draft.gpus = tuple(map(int, parts))
            draft.translated(line, "gpu_ids", f"→ hosts.0.gpus: [{', '.join(map(str, draft.gpus))}]")
        else:
            draft.wrong(line, 1, f"gpu_ids: {shown(text)}", "expected all, or indices like 0,1")

    def _section(self, line: int, key: str, node: Node) -> None:
        """Translate a section whose settings are passed to the script as variables."""
        draft, known = self._draft, SECTIONS.get(key)
        entries = node.entries if isinstance(node, MappingNode) else {}
        if not entries:
            draft.dropped(line, key, "empty")
            return
        if known is None:
            draft.ambiguous(line, key, "has no counterpart; dropped: `accelerate launch` gives it to the script")
            return
        if switch := SWITCHES.get(key):
            draft.env[switch] = "true"
            draft.translated(line, key, f"→ job.env: {switch}")
        for name, (place, value) in entries.items():
            variable = known.get(name)
            if name in _OF_THE_LAUNCHER and isinstance(value, ScalarNode):
                self._deepspeed_launcher(place.line, name, value.text)
            elif variable is None or not isinstance(value, ScalarNode):
                draft.ambiguous(place.line, f"{key}.{name}", "unknown; dropped")
            elif not value.is_null:
                lowered = value.text.lower() if value.plain and value.text.lower() in ("true", "false") else value.text
                draft.env[variable] = lowered
                draft.translated(place.line, f"{key}.{name}", f"{shown(value.text)} → job.env: {variable}")
