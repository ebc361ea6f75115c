"""Translates a DeepSpeed configuration (JSON) to a draft of a profile."""

from __future__ import annotations

from collections.abc import Iterator

from disttui.runner.planning.interop.draft import Translation, shown
from disttui.runner.profile.nodes import MappingNode, Node, ScalarNode

_SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_SHARED = "sequence_parallel_size"
"""The number of processes that share a batch."""
_STAYS = "stays in the file, which the script reads"


def read(root: MappingNode, draft: Translation, hosts: int) -> None:
    """Pass the file to the script, and derive the number of processes from it.

    Args:
        hosts: Number of --host options; the file itself names no hosts.
    """
    file = draft.source.rpartition("/")[2]
    draft.job["args"] = ["--deepspeed", "--deepspeed_config", file]
    what = f"job.args name {shown(file)} as DeepSpeed's own examples do; Trainer takes --deepspeed {shown(file)}"
    draft.ambiguous(0, "job.args", f"{what}; the file must be in job.workdir on every host")
    draft.launch["launcher"] = "deepspeed"
    what = "→ deepspeed, which adds --local_rank to the script's arguments; torchrun does not"
    draft.ambiguous(0, "launch.launcher", what)
    for place, path, node in values(root, ""):
        if isinstance(node, ScalarNode) and node.text == "auto":
            what = "Trainer and Accelerate fill it in; DeepSpeed itself rejects it"
            draft.ambiguous(place, path, f"auto: {what}")
        elif path not in (*_SIZES, _SHARED):
            draft.translated(place, path, _STAYS)
    _processes(root, draft, hosts)


def values(node: MappingNode, above: str) -> Iterator[tuple[int, str, Node]]:
    """Yield line, dotted path and value of each key that is not a nonempty mapping."""
    for key, (place, value) in node.entries.items():
        path = f"{above}{key}"
        if isinstance(value, MappingNode) and value.entries:
            yield from values(value, f"{path}.")
        else:
            yield place.line, path, value


def _changes_total(path: str, node: Node) -> bool:
    """Whether a setting makes `train_batch_size` unequal to micro batch × accumulation × processes."""
    text = node.text if isinstance(node, ScalarNode) else ""
    several = path == "tensor_parallel.autotp_size" and text not in ("0", "1")
    return several or (path, text) in (("elasticity.enabled", "true"), (_SHARED, "auto"))


def _processes(root: MappingNode, draft: Translation, hosts: int) -> None:
    """Derive the processes: train_batch_size = micro batch × accumulation × processes / sequence_parallel_size.

    So DeepSpeed's `DeepSpeedConfig` requires. It computes a missing accumulation from the number of processes.
    """
    numbers: dict[str, int] = {}
    lines: dict[str, int] = {}
    for key in (*_SIZES, _SHARED):
        place, node = root.entries.get(key, (root.place, None))
        text = node.text if isinstance(node, ScalarNode) else ""
        lines[key] = place.line
        if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text):
            numbers[key] = int(text)
        elif node is not None and text != "auto":
            draft.wrong(place.line, place.column, f"{key}: {shown(text)}", "expected a whole number from 1")
    total, micro = numbers.get(_SIZES[0]), numbers.get(_SIZES[1])
    steps, each = numbers.get(_SIZES[2]), numbers.get(_SHARED, 1)
    processes, left = divmod(total or 0, (micro or 1) * (steps or 1))
    processes *= each
    if total and micro and (left or not processes):
        what = f"{_SIZES[0]}: {total} is not a multiple of micro batch {micro} × accumulation {steps or 1}"
        draft.wrong(lines[_SIZES[0]], 1, what, "DeepSpeed rejects it; correct one of them")
        return
    others = [path for _, path, node in values(root, "") if _changes_total(path, node)]
    if not (total and micro and steps) or others:
        for key, number in numbers.items():
            draft.translated(lines[key], key, f"{number}: {_STAYS}")
        what = f"{others[0]} changes what {_SIZES[0]} counts" if others else "the file gives no number"
        draft.ambiguous(0, "num_processes", f"{what} → auto: one per GPU or core")
        return
    for key in (_SIZES[1], _SIZES[2], _SHARED):
        if key in numbers:
            draft.translated(lines[key], key, f"{numbers[key]}: {_STAYS}")
    shared = f" / {each}" if each > 1 else ""
    line, product = lines[_SIZES[0]], f"{total} = {micro} × {steps} × {processes} processes{shared} → num_processes:"
    if processes % max(hosts, 1):
        what = f"{_SIZES[0]}: {total} means {processes} processes, not a multiple of {hosts} hosts"
        draft.wrong(line, 1, what, "give another number of hosts by --host")
        return
    draft.num_processes = processes // max(hosts, 1)
    if hosts:
        draft.translated(line, _SIZES[0], f"{product} {draft.num_processes} per host")
    else:
        what = f"{product} {processes}, on one host; with --host they are shared between the hosts"
        draft.ambiguous(line, _SIZES[0], what)
