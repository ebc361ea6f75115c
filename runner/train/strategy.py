"""How a model is spread over the ranks, behind the few calls in which the ways differ."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Union

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from .batching import BatchPlan
from .clock import ForwardClock
from .context import Exchange
from .layout import VOCABULARY
from .memory import offload_policy
from .mesh import RankMesh
from .options import Options
from .slow_links import compress
from .state import Parameters
from .tensor_parallel import cut_layers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Batch = tuple[Any, Any]
"""Inputs and targets, samples × length each."""


class Strategy:
    """A model on all ranks: what the loop asks of it. Every call is a collective.

    `model` is this rank's part as a module, `parameters` its weights by their names in the whole model.
    """

    model: Any
    parameters: Parameters

    def __init__(self, mesh: RankMesh, device: Any, options: Options) -> None:
        self.mesh = mesh
        self._device = device
        self._context = options.context
        self._dtype = DTYPES[options.precision]
        self.loss_scale = 1.0
        """What the loss is multiplied by before the backward pass."""

    def gradients(self, batches: Iterable[Batch], rounds: int, clock: ForwardClock) -> Any:
        """Add up the gradients of one step and return this rank's part of the mean loss, see `clip.reduce_and_clip`."""
        total = torch.zeros((), device=self._device)
        for index, (inputs, targets) in enumerate(batches):
            with self._round(last=index == rounds - 1):
                with clock.running():
                    loss = self.losses(inputs, targets).mean() / rounds
                (loss * self.loss_scale).backward()
            total += loss.detach()
        return total

    def losses(self, inputs: Any, targets: Any) -> Any:
        """Mean loss of each sample over this rank's part of it; zeros where another stage has the loss."""
        logits = self._forward(self._part(inputs))
        if logits is None:
            return torch.zeros(len(inputs), device=self._device)
        return _losses(logits, self._part(targets))

    def next_logits(self, tokens: Any) -> Any:
        """Logits of the byte that follows 1 × length `tokens`, on every rank."""
        layout, length = self.mesh.layout, tokens.shape[1]
        if layout.copies * layout.pp == 1:
            return self._forward(tokens)[0, -1]
        padded = functional.pad(tokens, (0, self._context - length))  # what comes later changes nothing before it
        logits = self._forward(self._part(padded))
        width = self._context // layout.cp
        found = torch.zeros(VOCABULARY, device=self._device)
        if logits is not None and (length - 1) // width == self.mesh.place.cp:
            found += logits[0, (length - 1) % width]
        dist.all_reduce(found)
        return found / (layout.dp * layout.tp)

    def _part(self, sequences: Any) -> Any:
        """This rank's part of sequences that context parallel divides."""
        return sequences.chunk(self.mesh.layout.cp, dim=1)[self.mesh.place.cp]

    def _forward(self, tokens: Any) -> Any:
        """Logits in fp32, None where another stage has them."""
        raise NotImplementedError

    def _round(self, *, last: bool) -> AbstractContextManager[None]:
        """Surrounds one accumulation round; gradients are exchanged in the last one alone."""
        raise NotImplementedError


class Replicated(Strategy):
    """DDP: every rank holds the whole model; bf16 and fp16 by autocast."""

    def __init__(self, model: Any, mesh: RankMesh, device: Any, options: Options) -> None:
        super().__init__(mesh, device, options)
        self._alone = options.sync_interval > 1
        self.model = DistributedDataParallel(
            model.to(device),
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )
        # The one buffer is constant: a forward pass would send it, and wait for rank 0. The argument of that name is no
        # longer wanted by new versions of torch, and its successor not known to old ones.
        self.model.broadcast_buffers = False
        compress(self.model, options.compress, options.warmup)
        self.parameters = dict(self.model.module.named_parameters())

    def _forward(self, tokens: Any) -> Any:
        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype != torch.float32):
            return self.model(tokens).float()

    def _round(self, *, last: bool) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = nullcontext() if last and not self._alone else self.model.no_sync()
        return context


class Sharded(Strategy):
    """FSDP2: each rank holds a shard of every weight; bf16 and fp16 by FSDP's own policy, gradients summed in fp32.

    Also the way to copy what tensor or pipeline parallel has cut, with shards of one rank: DDP cannot.
    """

    def __init__(self, model: Any, mesh: RankMesh, device: Any, options: Options) -> None:
        super().__init__(mesh, device, options)
        layout, low = mesh.layout, self._dtype != torch.float32
        _same_start(model, device)
        if layout.pp > 1:
            model.cut_to_stage(mesh.place.pp, layout.pp)
        if layout.tp > 1:
            # Nothing here changes an output in place, which is what torch warns of.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            cut_layers(model, mesh.whole["tp"])
        shard = partial(
            fully_shard,
            mesh=mesh.sharding,
            mp_policy=MixedPrecisionPolicy(self._dtype, torch.float32) if low else MixedPrecisionPolicy(),
            offload_policy=offload_policy(device, wanted=options.cpu_offload == "yes"),
        )
        if layout.pp > 1 or layout.dp_shard * layout.cp == 1:
            # A pipeline would gather the weights anew for every micro batch; shards of one rank save nothing.
            shard = partial(shard, reshard_after_forward=False)
        for block in model.blocks.values():
            shard(block)
        self.model = shard(model)
        self.parameters = dict(self.model.named_parameters())

    def _forward(self, tokens: Any) -> Any:
        return self.model(tokens).float()

    def _round(self, *, last: bool) -> AbstractContextManager[None]:
        self.model.set_requires_gradient_sync(last)
        return nullcontext()


class Pipelined(Sharded):
    """Stages of consecutive layers, each sharded over ranks of its own; micro batches go through them by 1F1B."""

    def __init__(self, model: Any, mesh: RankMesh, device: Any, options: Options, plan: BatchPlan) -> None:
        super().__init__(model, mesh, device, options)
        # Costs a second to import.
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: PLC0415

        self._width = options.width
        self._group = mesh.group("pp")
        micro_batches = plan.micro_batches(mesh.layout.pp)
        shape = plan.batch_size * plan.accumulate // micro_batches, options.context // mesh.layout.cp
        tokens = torch.zeros(shape, dtype=torch.long, device=device)
        given = tokens if mesh.first_stage else self._stream(tokens).requires_grad_()
        taken = self._stream(tokens).requires_grad_()
        if mesh.last_stage:
            taken = torch.zeros(*shape, VOCABULARY, dtype=self._dtype, device=device, requires_grad=True)
        stage = PipelineStage(
            self.model, mesh.place.pp, mesh.layout.pp, device, input_args=given, output_args=taken, group=self._group
        )

        def loss_of(logits: Any, targets: Any) -> Any:
            return _losses(logits.float(), targets).mean() * (self.loss_scale / micro_batches)

        self._schedule = Schedule1F1B(stage, micro_batches, loss_fn=loss_of, scale_grads=False)

    def gradients(self, batches: Iterable[Batch], rounds: int, clock: ForwardClock) -> Any:
        """As one schedule over all rounds; the clock stays still, because a stage's forward passes wait for others."""
        every = list(batches)
        inputs = self._part(torch.cat([inputs for inputs, _ in every]))
        targets = self._part(torch.cat([targets for _, targets in every]))
        found: list[Any] = []
        self._schedule.step(
            *([inputs] if self.mesh.first_stage else []),
            target=targets if self.mesh.last_stage else None, losses=found, return_outputs=False,
        )  # fmt: skip
        return sum((loss.detach() for loss in found), torch.zeros((), device=self._device)) / self.loss_scale

    def _forward(self, tokens: Any) -> Any:
        """Through all stages without a schedule: for samples of any number."""
        before, after = self.mesh.place.pp - 1, self.mesh.place.pp + 1
        x = tokens
        if not self.mesh.first_stage:
            x = self._stream(tokens)
            dist.recv(x, dist.get_global_rank(self._group, before), self._group)
        x = self.model(x)
        if self.mesh.last_stage:
            return x.float()
        dist.send(x.contiguous(), dist.get_global_rank(self._group, after), self._group)
        return None

    def _stream(self, tokens: Any) -> Any:
        """Room for the residual stream of these tokens, which tensor parallel cuts along the sequence."""
        samples, length = tokens.shape
        shape = samples, length // self.mesh.layout.tp, self._width
        return torch.empty(shape, dtype=self._dtype, device=self._device)


def distribute(model: Any, mesh: RankMesh, device: Any, options: Options, plan: BatchPlan) -> Strategy:
    """Spread a model that every rank has built on the CPU; all ranks start from rank 0's weights."""
    layout = mesh.layout
    if layout.cp > 1:
        exchange = Exchange(mesh.group("cp"))
        for block in model.blocks.values():
            block.attention.exchange = exchange
    if layout.pp > 1:
        return Pipelined(model, mesh, device, options, plan)
    kind: type[Union[Sharded, Replicated]] = Sharded if layout.tp > 1 or layout.strategy != "ddp" else Replicated
    return kind(model, mesh, device, options)


def _losses(logits: Any, targets: Any) -> Any:
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(len(targets), -1).mean(1)


def _same_start(model: Any, device: Any) -> None:
    """Give all ranks rank 0's weights: another version of torch may have made others of the same seed."""
    with torch.no_grad():
        for parameter in model.parameters():
            shared = parameter.to(device)
            dist.broadcast(shared, src=0)
            parameter.copy_(shared)
