"""From options to a trained model: sets up the parts in order, trains, and prints how it ended."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import time
from typing import Any, Optional

import torch
import torch.distributed as dist

from .batching import BatchPlan
from .corpus import Corpus, Text, read_text
from .group import choose_device, from_rank0, join
from .keeper import Keeper, Recipe
from .layout import Layout, RankIdentity
from .loop import Training, scale_lr
from .metrics import MetricsWriter
from .model import Architecture, build
from .options import Options
from .problem import Problem, say, user_path
from .smoke import TIMEOUT, measure
from .state import Parameters
from .strategy import RankMesh, distribute, recompute_activations
from .termination import Terminated


def run(options: Options, layout: Layout, plan: BatchPlan, place: RankIdentity) -> None:
    """Train according to the options. Raises Problem, the same one on every rank."""
    device = choose_device(place, options.backend)
    if options.compile == "yes":
        _find_compiler(device)
    only_measured = options.measure != "no"
    join(place, device, layout, *([TIMEOUT] if only_measured else []))
    ended: Optional[BaseException] = None
    try:
        if only_measured:
            measure(options, plan, place, device)
        else:
            train(options, layout, plan, place, device)
    except (Problem, Terminated, KeyboardInterrupt) as error:
        ended = error.with_traceback(None)  # the frames hold tensors and the group
    # DDP also holds the group. If that were the last reference, gloo's threads would be joined by the thread that holds
    # the interpreter's lock, for which a thread with a late tensor waits: about one run in ten never ended. And if the
    # group were left to the interpreter's end, such a thread would abort the process.
    gc.collect()
    dist.destroy_process_group()
    if ended is not None:
        raise ended


def _find_compiler(device: Any) -> None:
    """Raise Problem if torch.compile would fail in the first step because this host has no compiler."""
    names = [os.environ.get("CXX", "g++")] if device.type == "cpu" else [os.environ.get("CC", "gcc"), "clang"]
    if not any(map(shutil.which, names)):
        raise Problem(
            f"--compile yes needs {names[0]}, which {platform.node()} does not have: install it, or leave it out",
            host_only=True,
        )


def train(options: Options, layout: Layout, plan: BatchPlan, place: RankIdentity, device: Any) -> None:
    """Train within the existing process group. A collective."""
    text, data = _share_text(options, device)
    corpus = Corpus(data, options.context)
    corpus.require(plan.global_batch, text.name)
    peak_lr = scale_lr(options.lr, options.lr_scaling, layout.dp)
    folder = user_path(os.environ.get("DISTTUI_CHECKPOINTS") or "checkpoints")
    recipe = _recipe(options, plan, text, peak_lr)
    keeper = Keeper(folder, recipe, options.checkpoint_interval, options.checkpoint_format, device)

    model = build(
        Architecture(options.layers, options.heads, options.width, options.context, options.dropout), options.seed
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if options.activation_checkpointing == "yes":
        recompute_activations(model.blocks.values())
    if options.compile == "yes":
        for block in model.blocks.values():
            block.compile()
    strategy = distribute(model, RankMesh(layout, device.type), device, options, plan)
    optimizer = _optimizer(strategy.parameters, options)
    found = keeper.resume(options.resume, strategy.parameters, optimizer)
    size = f"{parameters / 1e6:.2f} M parameters"
    _say_hello(place, device, size=size, options=options, layout=layout, plan=plan, text=text)
    if place.rank == 0:
        for note in (*text.notes, *found.notes):
            say(f"note: {note}")

    metrics = MetricsWriter(os.environ.get("DISTTUI_METRICS", ""))
    training = Training(
        options,
        plan,
        place,
        device,
        corpus,
        strategy,
        optimizer,
        keeper,
        metrics,
        peak_lr,
        found.step,
        found.samples,
        found.scaling,
    )
    began = time.perf_counter()
    val_loss = training.run()
    _say_goodbye(training, val_loss, training.step - found.step, time.perf_counter() - began)


def _share_text(options: Options, device: Any) -> tuple[Text, Any]:
    """Rank 0's text, and its bytes as a tensor on every rank's device; the others' Text has only the name."""
    text = Text(b"", "")

    def read() -> tuple[str, int]:
        nonlocal text
        text = read_text(options.data)
        return text.name, len(text.data)

    name, size = from_rank0(read, device)
    if text.data:
        data = torch.frombuffer(bytearray(text.data), dtype=torch.uint8).to(device)
    else:
        text = Text(b"", name)
        data = torch.empty(size, dtype=torch.uint8, device=device)
    dist.broadcast(data, src=0)
    return text, data


def _recipe(options: Options, plan: BatchPlan, text: Text, peak_lr: float) -> Recipe:
    return {
        "layers": options.layers,
        "heads": options.heads,
        "width": options.width,
        "context": options.context,
        "global batch": plan.global_batch,
        "steps": options.steps,
        "peak lr": peak_lr,
        "seed": options.seed,
        "data": text.digest[:16],
    }


def _optimizer(parameters: Parameters, options: Options) -> Any:
    weights = list(parameters.values())
    groups = [
        {"params": [p for p in weights if p.ndim >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in weights if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=True)


def _say_hello(
    place: RankIdentity, device: Any, *, size: str, options: Options, layout: Layout, plan: BatchPlan, text: Text
) -> None:
    threads = torch.get_num_threads()
    cpu = f"cpu ({threads} thread{'s' * (threads > 1)})"
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    who = f"rank {place.rank} of {place.world_size} on {platform.node()}: {machine}"
    if place.rank:
        say(who)
        return
    say(
        f"bytegpt  {who}  {dist.get_backend()}  world size {place.world_size}  {size}  {layout.strategy} "
        f"{options.precision}  {len(text.data) / 1e6:.1f} MB of {text.name}"
    )
    ranks = f"{plan.dp} ranks"
    if layout.dp < place.world_size:
        ranks = f"{plan.dp} data-parallel rank{'' if plan.dp == 1 else 's'}"
    if layout.strategy == "hsdp" or layout.dp < place.world_size:
        say(f"layout {layout} = {place.world_size} ranks")
    parts = f", in {plan.micro_batches(layout.pp)} micro batches" if layout.pp > 1 else ""
    say(
        f"batch {plan.global_batch} = {plan.batch_size} × {ranks} × {plan.accumulate} "
        f"round{'s' * (plan.accumulate != 1)} of {options.context} bytes"
        f"{parts}"
    )


def _say_goodbye(training: Training, val_loss: float, steps: int, seconds: float) -> None:
    options, rank = training.options, training.place.rank
    text = sample_text(
        training.strategy, training.device, length=options.sample, context=options.context, seed=options.seed
    )
    if rank:
        say(f"rank {rank}: done after {steps} steps")
        return
    if text:
        say(f"sample:\n{text}")
        training.metrics.write(training.step, sample=text)
    say(f"done: {steps} steps in {seconds:.1f} s, validation loss {val_loss:.4f}")


def sample_text(strategy: Any, device: Any, *, length: int, context: int, seed: int) -> str:
    """Let the model write `length` bytes after a line break; unprintable ones become "·".

    A collective: every rank must call it.
    """
    generator = torch.Generator().manual_seed(seed)
    written = [10]
    strategy.model.eval()
    with torch.no_grad():
        for _ in range(length):
            tokens = torch.tensor([written[-context:]], device=device)
            chances = torch.softmax(strategy.next_logits(tokens).cpu() / 0.8, dim=-1)
            written.append(int(torch.multinomial(chances, 1, generator=generator)))
    text = bytes(written[1:]).decode("utf-8", "replace")
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text)
