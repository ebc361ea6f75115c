"""What the sizes under `parallel` ask of the built-in job, and what is wrong with them as far as the file tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.profile.problems import Flaw, Path
from runner.profile.sections import Host, Job, Parallel
from runner.train.layout import Flaw as SizeFlaw
from runner.train.layout import Sizes, link_flaws, model_flaws, settle, strategy_flaws
from runner.train.options import Options, parse
from runner.train.problem import Problem


def asked(parallel: Parallel, options: Options) -> tuple[Sizes, str]:
    """Sizes and strategy, the profile's before those of the job's own arguments."""
    pairs = {name: getattr(parallel, name) or getattr(options, name) for name in Sizes._fields}
    return Sizes(**pairs), parallel.strategy if parallel.strategy != "auto" else options.strategy


def link_options(parallel: Parallel, options: Options) -> tuple[int, str]:
    """`sync_interval` and `compress`, the profile's before those of the job's own arguments."""
    compress = parallel.compress if parallel.compress != "none" else options.compress
    return parallel.sync_interval if parallel.sync_interval > 1 else options.sync_interval, compress


def flaws(parallel: Parallel, job: Job, hosts: Sequence[Host]) -> list[Flaw]:
    """Everything wrong. The product is checked where every host's process count is given."""
    try:
        options = parse(job.args)
    except Problem:
        return []  # preflight says what is wrong with the arguments
    sizes, strategy = asked(parallel, options)
    sync_interval, compress = link_options(parallel, options)
    found: dict[Path, Flaw] = {}
    spared = link_flaws(sizes, strategy, sync_interval=sync_interval, compress=compress)
    for flaw in (*_size_flaws(sizes, strategy, options, hosts), *spared):
        place = _place(flaw.key, parallel, job)
        found.setdefault(place, (flaw.what, flaw.cure, place))
    return list(found.values())


def _size_flaws(sizes: Sizes, strategy: str, options: Options, hosts: Sequence[Host]) -> Iterator[SizeFlaw]:
    yield from strategy_flaws(sizes, strategy)
    yield from model_flaws(sizes, layers=options.layers, heads=options.heads, context=options.context)
    counts = [host.num_processes for host in hosts if host.num_processes]
    if counts and len(counts) == len(hosts) and isinstance(flaw := settle(sizes, strategy, counts), SizeFlaw):
        yield flaw


def _place(key: str, parallel: Parallel, job: Job) -> Path:
    if key in parallel.model_fields_set and getattr(parallel, key):
        return ("parallel", key)
    option = f"--{key.replace('_', '-')}"
    return ("job", "args", next((at for at, word in enumerate(job.args) if word.partition("=")[0] == option), 0))
