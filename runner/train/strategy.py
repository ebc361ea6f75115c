"""How a model is spread over the ranks, behind the few calls in which strategies differ."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any, Union

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from .batching import BatchPlan
from .layout import ORDER, VOCABULARY, Layout
from .metrics import ForwardClock
from .options import Options
from .problem import Problem
from .state import MOMENTS, Parameters, begin_moments

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_RANK = 4
"""Rank of the matrices that PowerSGD sends instead of a gradient."""
_BUCKET = 32 * 2**20
"""Bytes that are sent in one message."""


def compress(model: Any, kind: str, warmup: int) -> None:
    """Make DDP send gradients in bf16 or fp16, or as PowerSGD's factors after the warm-up."""
    if kind == "powersgd":
        # Rarely needed.
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # noqa: PLC0415

        try:
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=_RANK, start_powerSGD_iter=max(2, warmup)
            )
        except ImportError:
            raise Problem("--compress powersgd needs numpy beside torch: install it, or take bf16") from None
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif kind != "none":
        # Not torch's bf16_compress_hook, which DDP rejects with gloo; a lambda has no annotations to check.
        model.register_comm_hook(DTYPES[kind], lambda dtype, bucket: _send_as(dtype, bucket))  # noqa: PLW0108


def _send_as(dtype: Any, bucket: Any) -> Any:
    """The mean over all ranks of a bucket of gradients, sent as another type."""
    sent = bucket.buffer().to(dtype).div_(dist.get_world_size())

    def back(future: Any) -> Any:
        return bucket.buffer().copy_(future.value()[0])

    return dist.all_reduce(sent, async_op=True).get_future().then(back)


def average(tensors: Iterable[Any]) -> None:
    """Replace tensors by their means over all ranks, in few messages: each has the link's delay. A collective."""
    bucket: list[Any] = []
    size = 0
    for tensor in tensors:
        bucket.append(tensor)
        size += tensor.numel() * tensor.element_size()
        if size >= _BUCKET:
            _average_together(bucket)
            bucket, size = [], 0
    if bucket:
        _average_together(bucket)


def _average_together(tensors: Sequence[Any]) -> None:
    whole = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(whole)
    whole.div_(dist.get_world_size())
    for tensor, part in zip(tensors, whole.split([tensor.numel() for tensor in tensors])):  # noqa: B905
        tensor.copy_(part.view_as(tensor))


def average_state(parameters: Iterable[Any], optimizer: Any, *, moments: bool) -> None:
    """Average the ranks' own models: their weights and, for a checkpoint, their moments."""
    weights = list(parameters)
    if moments:
        # A rank that has skipped every fp16 step so far has none.
        begin_moments(
            {str(index): one for index, one in enumerate(weights) if one not in optimizer.state}, optimizer, 0
        )
    with torch.no_grad():
        average(weight.detach() for weight in weights)
        if moments:
            average(optimizer.state[weight][key] for weight in weights for key in MOMENTS)


Batch = tuple[Any, Any]
"""Inputs and targets, samples × length each."""


class Strategy:
    """A model on all ranks, as the loop uses it. Every call is a collective.

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
        """The factor of the loss in the backward pass."""

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
        """Mean loss of each sample over this rank's part of it; zeros if another stage has the loss."""
        logits = self._forward(self._part(inputs))
        if logits is None:
            return torch.zeros(len(inputs), device=self._device)
        return _losses(logits, self._part(targets))

    def next_logits(self, tokens: Any) -> Any:
        """Logits of the byte that follows 1 × length `tokens`, on every rank."""
        layout, length = self.mesh.layout, tokens.shape[1]
        if layout.copies * layout.pp == 1:
            return self._forward(tokens)[0, -1]
        padded = functional.pad(tokens, (0, self._context - length))  # later positions do not affect earlier ones
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
        """Logits in fp32, None if another stage has them."""
        raise NotImplementedError

    def _round(self, *, last: bool) -> AbstractContextManager[None]:
        """A context for one accumulation round; gradients are exchanged only in the last one."""
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
        # The only buffer is constant: a forward pass would send it, and wait for rank 0. The argument of that name is
        # deprecated in new versions of torch, and its successor is unknown to old ones.
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

    With shards of one rank it also copies what tensor or pipeline parallel has cut, which DDP cannot.
    """

    def __init__(self, model: Any, mesh: RankMesh, device: Any, options: Options) -> None:
        super().__init__(mesh, device, options)
        layout, low = mesh.layout, self._dtype != torch.float32
        _same_start(model, device)
        if layout.pp > 1:
            model.cut_to_stage(mesh.place.pp, layout.pp)
        if layout.tp > 1:
            # Nothing here changes an output in place, which is what torch warns about.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            cut_layers(model, mesh.whole["tp"])
        shard = partial(
            fully_shard,
            mesh=mesh.sharding,
            mp_policy=MixedPrecisionPolicy(self._dtype, torch.float32) if low else MixedPrecisionPolicy(),
            offload_policy=(
                CPUOffloadPolicy(pin_memory=device.type == "cuda") if options.cpu_offload == "yes" else OffloadPolicy()
            ),
        )
        if layout.pp > 1 or layout.dp_shard * layout.cp == 1:
            # A pipeline would gather the weights again for every micro batch; shards of one rank save nothing.
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
    """Stages of consecutive layers, each sharded over its own ranks; micro batches pass through them by 1F1B."""

    def __init__(self, model: Any, mesh: RankMesh, device: Any, options: Options, plan: BatchPlan) -> None:
        super().__init__(model, mesh, device, options)
        # Takes a second to import.
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: PLC0415

        self._width = options.width
        self._group = mesh.whole.get_group("pp")
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
        """Run one schedule over all rounds; the clock is not used, because a stage's forward passes wait for others."""
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
        """Run all stages without a schedule, for any number of samples."""
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
        """Space for the residual stream of these tokens, which tensor parallel cuts along the sequence."""
        samples, length = tokens.shape
        shape = samples, length // self.mesh.layout.tp, self._width
        return torch.empty(shape, dtype=self._dtype, device=self._device)


def distribute(model: Any, mesh: RankMesh, device: Any, options: Options, plan: BatchPlan) -> Strategy:
    """Spread a model that every rank has built on the CPU; all ranks start with rank 0's weights."""
    layout = mesh.layout
    if layout.cp > 1:
        group = mesh.whole.get_group("cp")
        for block in model.blocks.values():
            block.attention.group = group
    if layout.pp > 1:
        return Pipelined(model, mesh, device, options, plan)
    kind: type[Union[Sharded, Replicated]] = Sharded if layout.tp > 1 or layout.strategy != "ddp" else Replicated
    return kind(model, mesh, device, options)


def _losses(logits: Any, targets: Any) -> Any:
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(len(targets), -1).mean(1)


def _same_start(model: Any, device: Any) -> None:
    """Give all ranks rank 0's weights: another version of torch may generate others from the same seed."""
    with torch.no_grad():
        for parameter in model.parameters():
            shared = parameter.to(device)
            dist.broadcast(shared, src=0)
            parameter.copy_(shared)


def recompute_activations(blocks: Any) -> None:
    """Keep only the input of each block's forward pass, and repeat the pass in the backward pass.

    It is repeated within the block's own call, so that FSDP's work before and after it is not done twice.
    """
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


# Tensor parallel with sequence parallel (Korthikanti et al. 2022, arXiv 2205.05198): each rank has a part of the heads
# and of the network; in between, where every rank would do the same, a part of the sequence.
_SEQUENCE = Shard(1)


def cut_layers(model: Any, mesh: Any) -> None:
    """Divide the weights of the model, or of one stage, over a one-dimensional mesh. A collective."""
    plan: dict[str, ParallelStyle] = {
        "blocks.*.norm1": SequenceParallel(),
        "blocks.*.attention.qkv": ColwiseParallel(input_layouts=_SEQUENCE),
        "blocks.*.attention.out": RowwiseParallel(output_layouts=_SEQUENCE),
        "blocks.*.norm2": SequenceParallel(),
        "blocks.*.up": ColwiseParallel(input_layouts=_SEQUENCE),
        "blocks.*.down": RowwiseParallel(output_layouts=_SEQUENCE),
    }
    if model.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=_SEQUENCE)
    if model.head is not None:
        plan["norm"] = SequenceParallel()
        plan["head"] = ColwiseParallel(input_layouts=_SEQUENCE, output_layouts=Replicate())
    parallelize_module(model, mesh, plan)


class RankMesh:
    """One DeviceMesh with a dimension for every size above 1, named as in the profile, and always `dp_shard`.

    It is created when a part of it is first needed: plain DDP needs none.

    Args:
        layout: The sizes; their product is the world size.
        device_type: cpu or cuda.
    """

    def __init__(self, layout: Layout, device_type: str) -> None:
        self.layout = layout
        self.place = layout.coordinates(dist.get_rank())
        self._device_type = device_type

    @cached_property
    def whole(self) -> Any:
        """The DeviceMesh of all ranks. A collective when first used."""
        names = [name for name in ORDER if name == "dp_shard" or getattr(self.layout, name) > 1]
        shape = tuple(getattr(self.layout, name) for name in names)
        return init_device_mesh(self._device_type, shape, mesh_dim_names=tuple(names))

    @cached_property
    def sharding(self) -> Any:
        """The submesh that weights are sharded over: (dp_replicate,) dp_shard × cp. A collective when first used.

        The ranks that share sequences hold the same weights, so these are sharded over them as well.
        """
        inner = self.whole["dp_shard"]
        if self.layout.cp > 1:
            inner = self.whole["dp_shard", "cp"]._flatten("dp_shard_cp")
        if self.layout.dp_replicate == 1:
            return inner
        with warnings.catch_warnings():
            # torch intends to remove this and has no public way yet to combine a flattened dimension with another.
            warnings.filterwarnings("ignore", message="Slicing a flattened dim")
            return self.whole["dp_replicate", inner.mesh_dim_names[0]]

    @property
    def first_stage(self) -> bool:
        """Whether this rank has the embedding."""
        return self.place.pp == 0

    @property
    def last_stage(self) -> bool:
        """Whether this rank has the head, and with it the loss."""
        return self.place.pp == self.layout.pp - 1
