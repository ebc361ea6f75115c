"""Renders the table of `disttui probe`: a row per host with details below it; shared details come last."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from disttui.runner.errors import DisttuiError
from disttui.runner.formatting import gibibytes, ranges
from disttui.runner.hosts.facts import Gpu, HostFacts, Interpreter, Nic
from disttui.runner.protocol.leases import who_has
from disttui.runner.text import clean

WIDTH = 80
"""The table's width in cells."""

_HEAD = ("HOST", "CORES", "MEMORY", "GPUS", "TORCH", "ADDRESS")
_MARK = " ≠"
_INDENT = "    "

Results = Sequence[tuple[str, HostFacts | DisttuiError]]


def render_probe(results: Results) -> str:
    """Return the table of all hosts in the given order, without a final line break.

    Cores are `usable by this login/physical`, memory is `available/total` in GiB (the control group's limit if it has
    one), GPUs are `free/all`. `≠` marks values that differ from those of most hosts; the last lines list them.
    Details that several hosts share are shown once, after all rows.
    """
    hosts = [(clean(name), item) for name, item in results if isinstance(item, HostFacts)]
    marked, notes = differences(hosts)
    rows = [_HEAD, *(host_row(at, name, facts, marked) for at, (name, facts) in enumerate(hosts))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    columns = len(_HEAD)
    if sum(widths) + 2 * (columns - 1) > WIDTH:  # the addresses move to the lines below
        columns -= 1
        widths[0] = max(4, min(widths[0], WIDTH - sum(widths[1:columns]) - 2 * (columns - 1)))
    heads = iter([_line(row[:columns], widths) for row in rows])
    lines = [next(heads)] if hosts else []
    details = [dict.fromkeys(host_details(facts, columns < len(_HEAD))) for _, facts in hosts]
    owners: dict[str, list[str]] = {}
    for (name, _), texts in zip(hosts, details, strict=True):
        for text in texts:
            owners.setdefault(text, []).append(name)
    own = iter([[text for text in texts if len(owners[text]) == 1] for texts in details])
    for name, item in results:
        if isinstance(item, HostFacts):
            lines += [next(heads), *_all_wrapped(next(own))]
        else:
            lines += _failed(clean(name), item)
    shared: dict[str, list[str]] = {}
    for text, names in owners.items():
        if len(names) > 1:
            every = len(names) == len(hosts) > 3
            shared.setdefault(f"all {len(names)} hosts:" if every else f"{', '.join(names)}:", []).append(text)
    for whose, equal in shared.items():
        lines += [*_wrapped(whose, indent=""), *_all_wrapped(equal)]
    lines += [line for note in notes for line in _wrapped(note, indent="")]
    return "\n".join(lines)


def host_row(at: int, name: str, facts: HostFacts, marked: set[tuple[int, str]]) -> tuple[str, ...]:
    """Return the cells of host number `at`: name, cores, memory, GPUs, torch, address; `≠` follows `marked` ones."""
    chosen = _with_torch(facts)
    total = min(facts.memory.total, facts.memory.limit or facts.memory.total)
    cells = {
        "cores": f"{facts.cpu.available}/{facts.cpu.physical}",
        "memory": f"{_gib(min(facts.memory.available, total))}/{_gib(total)} GiB",
        "GPUs": f"{sum(not gpu.busy for gpu in facts.gpus)}/{len(facts.gpus)} free" if facts.gpus else "-",
        "torch": (chosen[0].torch or "")[:20] if chosen else "none",
    }
    nics = _reachable(facts)
    address = nics[0].addresses[0] if nics else "-"
    shown = (text + _MARK * ((at, column) in marked) for column, text in cells.items())
    return (name, *shown, clean(address))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell if len(cell) <= width else cell[: width - 1] + "…" for cell, width in zip(row, widths, strict=False))
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)).rstrip()


def host_details(facts: HostFacts, with_address: bool) -> Iterator[str]:
    """Yield the details of one host."""
    chosen = _with_torch(facts)
    if not chosen:
        others = [one for one in facts.interpreters if one.torch]
        looked = ", ".join(one.path for one in facts.interpreters if not one.torch)
        named = " or ".join(f"{one.path} (torch {one.torch})" for one in others)
        cure = f"Set `python` in the profile to {named}." if named else "Set `python: PATH` to one that has it."
        yield clean(f"no torch in {looked or 'any Python'}. {cure}")
    for item in chosen:
        known = {"Python": item.version, "torch": item.torch, "CUDA": item.cuda, "NCCL": item.nccl}
        parts = [item.path, *(f"{name} {version}" for name, version in known.items() if version)]
        yield clean(" · ".join(parts))
    yield from _cpu_limits(facts)
    yield from _gpu_lines(facts.gpus, facts.time)
    nics = _reachable(facts)
    if with_address or sum(len(nic.addresses) for nic in nics) > 1:
        for nic in nics:
            speed = f" · {nic.speed / 1000:g} Gbit/s" if nic.speed else ""
            yield f"{clean(nic.name)}: {', '.join(map(clean, nic.addresses))}{speed}"
    for problem in facts.problems:
        yield f"! {problem}"


def _cpu_limits(facts: HostFacts) -> Iterator[str]:
    cpu = facts.cpu
    limits = []
    if cpu.affinity < cpu.logical:
        limits.append(f"this login may use {cpu.affinity} of {cpu.logical} logical CPUs")
    if cpu.quota is not None:
        limits.append(f"its control group allows {cpu.quota:g} cores")
    if limits:
        yield ", ".join(limits)


def _gpu_lines(gpus: Sequence[Gpu], now: float) -> Iterator[str]:
    for kind, group in groupby(gpus, key=lambda gpu: f"{gpu.name}, {gpu.size}"):
        yield f"{_numbers(group)}: {kind}"
    for who, group in groupby(gpus, key=lambda gpu: gpu.lease and who_has(gpu.lease, now)):
        if who:
            yield f"{_numbers(group)}: leased: {who}"
    for gpu in gpus:
        if gpu.in_use:
            use = "" if gpu.use is None else f", {gpu.use:.0f} % busy"
            taken = f"GPU {gpu.index}: {gibibytes(gpu.memory_used)} used{use}"
            who = ", ".join(f"{item.user} ({item.command} {item.pid})" for item in gpu.processes)
            yield f"{taken}, by {who or 'a process that is not visible from here'}"


def _numbers(group: Iterable[Gpu]) -> str:
    indices = [gpu.index for gpu in group]
    return f"GPU{'s' * (len(indices) > 1)} {ranges(indices)}"


def _failed(name: str, error: DisttuiError) -> Iterator[str]:
    yield from _wrapped(f"{name}: {clean(error.reason)}", indent="")
    if error.cure:
        yield from _wrapped("→ " + clean(error.cure))


def _all_wrapped(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _wrapped(text)


def _wrapped(text: str, indent: str = _INDENT) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def differences(hosts: Sequence[tuple[str, HostFacts]]) -> tuple[set[tuple[int, str]], list[str]]:
    """Return (row, column) of every cell that differs from most hosts, and lines that list the values of its column."""
    columns: dict[str, Callable[[HostFacts], Any]] = {
        "cores": lambda facts: f"{facts.cpu.available}/{facts.cpu.physical}",
        "memory": lambda facts: _gib(min(facts.memory.total, facts.memory.limit or facts.memory.total)),
        "GPUs": _gpu_summary,
        "torch": lambda facts: _torch_summary(_with_torch(facts)),
    }
    marked: set[tuple[int, str]] = set()
    notes = []
    for column, value_of in columns.items():
        values = [value_of(facts) for _, facts in hosts]
        usual = Counter(values).most_common(1)[0][0] if values else None
        odd = [at for at, value in enumerate(values) if not _alike(value, usual)]
        marked.update((at, column) for at in odd)
        if odd:
            names = {value: [name for at, (name, _) in enumerate(hosts) if values[at] == value] for value in values}
            unit = " GiB" if column == "memory" else ""
            listed = "; ".join(f"{value}{unit} on {', '.join(found)}" for value, found in names.items())
            notes.append(f"≠ {column}: {listed}")
    return marked, notes


def _alike(value: Any, usual: Any) -> bool:
    """Whether two values count as equal: numbers within 5 %, since the memory of identical machines varies slightly."""
    if isinstance(value, int):
        return bool(abs(value - usual) <= 0.05 * usual)
    return bool(value == usual)


def _gpu_summary(facts: HostFacts) -> str:
    kinds = Counter(f"{gpu.name} {gpu.size}" for gpu in facts.gpus)
    return " + ".join(f"{count} × {kind}" for kind, count in sorted(kinds.items())) or "none"


def _torch_summary(found: Sequence[Interpreter]) -> str:
    if not found:
        return "none"
    version, cuda = found[0].torch or "", found[0].cuda
    return f"{version} (CUDA {cuda})" if cuda and "+cu" not in version else version


def _with_torch(facts: HostFacts) -> list[Interpreter]:
    return [item for item in facts.interpreters if item.is_eligible]


def _reachable(facts: HostFacts) -> list[Nic]:
    """Return the active interfaces to other machines: physical ones, or in containers all but loopback."""
    nics = [nic for nic in facts.nics if nic.up and nic.addresses and not nic.loopback]
    return [nic for nic in nics if not nic.virtual] or nics


def _gib(size: int) -> int:
    return round(size / 2**30)
