"""Options and the hosts' process counts → how the ranks divide model and samples. Pure, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

from .batching import BatchPlan, plan_batches
from .layout import Flaw, Layout, Sizes, link_flaws, micro_batch_flaw, model_flaws, offload_flaw, settle
from .options import Options
from .problem import Problem


def divide(options: Options, hosts: Sequence[int]) -> tuple[Layout, BatchPlan]:
    """How the ranks of hosts with these process counts divide the work. Raises Problem where they cannot."""
    found = _divide(options, hosts)
    if isinstance(found, Flaw):
        raise Problem(f"--{found.key.replace('_', '-')}: {found.what}: {found.cure}")
    return found


def find_flaw(options: Options, hosts: Sequence[int]) -> Optional[Flaw]:
    """Which size is wrong, None where all fit. Raises Problem where the batch cannot be divided."""
    found = _divide(options, hosts)
    return found if isinstance(found, Flaw) else None


def _divide(options: Options, hosts: Sequence[int]) -> Union[tuple[Layout, BatchPlan], Flaw]:
    shape = {"layers": options.layers, "heads": options.heads, "context": options.context}
    if flaw := next(model_flaws(options.sizes, **shape), None):
        return flaw
    layout = settle(options.sizes, options.strategy, hosts)
    if isinstance(layout, Flaw):
        return layout
    sizes = Sizes(layout.dp_replicate, layout.dp_shard, layout.tp, layout.pp, layout.cp)
    sync_interval, compress = options.sync_interval, options.compress
    if flaw := next(link_flaws(sizes, layout.strategy, sync_interval=sync_interval, compress=compress), None):
        return flaw
    if options.cpu_offload == "yes" and (flaw := offload_flaw(layout)):
        return flaw
    plan = plan_batches(options.batch_size, options.accumulate, options.global_batch, layout.dp)
    return micro_batch_flaw(layout.pp, plan.micro_batches(layout.pp)) or (layout, plan)
