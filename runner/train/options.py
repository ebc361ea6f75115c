"""The command line: every option with its unit and its reason."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Dict, NoReturn, Optional, Tuple, Union

from .batching import DEFAULT_BATCH_SIZE, BatchPlan, plan_batches
from .layout import STRATEGIES, Flaw, Layout, Sizes, link_flaws, micro_batch_flaw, model_flaws, offload_flaw, settle
from .problem import Problem


@dataclass(frozen=True)
class Options:
    """The values of the command line; the help of each option explains it."""

    steps: int
    batch_size: Optional[int]
    accumulate: Optional[int]
    global_batch: Optional[int]
    lr: float
    lr_scaling: str
    warmup: int
    min_lr_ratio: float
    weight_decay: float
    clip: float
    layers: int
    heads: int
    width: int
    context: int
    dropout: float
    data: Optional[str]
    val_interval: int
    val_batches: int
    checkpoint_interval: int
    checkpoint_format: str
    resume: str
    strategy: str
    dp_replicate: Optional[int]
    dp_shard: Optional[int]
    tp: Optional[int]
    pp: Optional[int]
    cp: Optional[int]
    precision: str
    backend: str
    compile: str
    activation_checkpointing: str
    cpu_offload: str
    sync_interval: int
    compress: str
    seed: int
    log_interval: int
    sample: int
    measure: str

    @property
    def sizes(self) -> Sizes:
        """The requested division of ranks, as far as it was given."""
        return Sizes(self.dp_replicate, self.dp_shard, self.tp, self.pp, self.cp)


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        return action.help if action.default is None else super()._get_help_string(action)


_MOST_WORDS, _LONGEST_WORD = 24, 80
"""Limits of an error, which repeats every unknown argument: its words, and characters of a word."""


class Parser(argparse.ArgumentParser):
    """Reports errors as a Problem."""

    def error(self, message: str) -> NoReturn:
        words = [word if len(word) <= _LONGEST_WORD else word[: _LONGEST_WORD - 1] + "…" for word in message.split(" ")]
        if (more := len(words) - _MOST_WORDS) > 0:
            words[_MOST_WORDS:] = [f"… and {more:,} more"]
        raise Problem(f"{' '.join(words)} (disttui profile bytegpt lists the options)")


def help_text() -> str:
    """The output of `--help`."""
    return _parser().format_help().rstrip()


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line. Raises Problem naming the option that is wrong."""
    options = Options(**vars(_parser().parse_args(arguments)))
    if options.width % (2 * options.heads):
        raise Problem(
            f"--width {options.width} must be a multiple of twice --heads {options.heads}, such as {options.heads * 32}"
        )
    if options.global_batch and options.lr_scaling != "none":
        raise Problem("--lr-scaling is for a batch that grows with the ranks; --global-batch fixes it: drop one")
    return options


_LARGEST = 10**15
"""Largest accepted value: a larger one is a typing error, and too large to calculate with."""


def _number(kind: Callable[[str], float], low: float, high: float = math.inf) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {wanted}") from None
        if not low <= value <= min(high, _LARGEST):
            unbounded = math.isinf(high) and not value > _LARGEST
            limits = f"at least {low:g}" if unbounded else f"from {low:g} to {min(high, _LARGEST):g}"
            raise argparse.ArgumentTypeError(f"must be {limits}, not {text if len(text) <= 40 else text[:39] + '…'}")
        return value

    return convert


def _option(name: str, text: str, **how: Any) -> Tuple[str, Dict[str, Any]]:
    return name, {"help": text, **how}


_COUNT, _AMOUNT = _number(int, 1), _number(int, 0)
_REAL, _RATIO = _number(float, 0), _number(float, 0, 1)
_GROUPS = {
    "length and batch (a sample is one block of --context bytes)": (
        _option("--steps", "optimizer steps in all", type=_COUNT, default=300),
        _option(
            "--batch-size", f"samples per rank and round ({DEFAULT_BATCH_SIZE} unless --global-batch says otherwise)",
            type=_COUNT, metavar="N",
        ),
        _option(
            "--accumulate", "rounds whose gradients make one step (1 unless --global-batch says otherwise)",
            type=_COUNT, metavar="N",
        ),
        _option(
            "--global-batch", "samples of one step over all ranks; --batch-size or --accumulate follows from it. "
            "Losses then do not depend on the number of ranks", type=_COUNT, metavar="N",
        ),
    ),
    "optimizer (AdamW, warm-up, then cosine)": (
        _option("--lr", "peak learning rate of one rank", type=_REAL, default=3e-3),
        _option(
            "--lr-scaling", "how --lr grows with the number of ranks, and so with the batch: sqrt suits Adam, "
            "linear suits SGD, none suits a run that was tuned at this size",
            choices=("none", "linear", "sqrt"), default="none",
        ),
        _option("--warmup", "steps from 0 to the peak", type=_AMOUNT, default=20, metavar="STEPS"),
        _option(
            "--min-lr-ratio", "last learning rate as a share of the peak", type=_RATIO, default=0.1, metavar="SHARE"
        ),
        _option("--weight-decay", "on matrices only", type=_REAL, default=0.1),
        _option("--clip", "largest norm of the gradient, 0: no clipping", type=_REAL, default=1.0),
    ),
    "model": (
        _option("--layers", "transformer blocks", type=_COUNT, default=4),
        _option("--heads", "attention heads", type=_COUNT, default=4),
        _option("--width", "size of the residual stream", type=_COUNT, default=128),
        _option("--context", "length of a sample", type=_COUNT, default=128, metavar="BYTES"),
        _option("--dropout", "share of activations dropped", type=_number(float, 0, 0.99), default=0.0),
    ),
    "data and validation": (
        _option(
            "--data", "text file or folder on the host of rank 0; not given: the built-in corpus", metavar="PATH"
        ),
        _option("--val-interval", "0: only at the end", type=_AMOUNT, default=50, metavar="STEPS"),
        _option("--val-batches", "held-out batches, each global", type=_COUNT, default=4, metavar="N"),
    ),
    "checkpoints (full state, written beside the training, newest two kept)": (
        _option("--checkpoint-interval", "0: none", type=_AMOUNT, default=100, metavar="STEPS"),
        _option(
            "--checkpoint-format", "sharded: every rank writes its part, on storage that all hosts share; file: rank 0 "
            "gathers and writes all; auto: sharded if no rank holds everything and all hosts share the storage, else "
            "file. Any layout on any number of ranks can load either",
            choices=("auto", "file", "sharded"), default="auto",
        ),
        _option(
            "--resume", "auto: from the newest complete checkpoint of the folder, if any; PATH: from this "
            "checkpoint, or the newest in this folder. Any number of ranks can resume from it; with the same global "
            "batch the loss curve is the same",
            default="no", metavar="auto|no|PATH",
        ),
    ),
    "how the ranks divide the work (the sizes multiply to the number of ranks; what is not given follows)": (
        _option(
            "--strategy", "ddp: a whole copy per rank; fsdp: weights, gradients and optimizer state sharded over all "
            "ranks; hsdp: sharded inside each host, replicated between hosts; auto: as the sizes say, else ddp",
            choices=STRATEGIES, default="auto",
        ),
        _option("--dp-replicate", "copies of the model that train on samples of their own", type=_COUNT, metavar="N"),
        _option("--dp-shard", "ranks that share one copy's weights and train on samples of their own", type=_COUNT,
                metavar="N"),
        _option("--tp", "ranks that share every layer of a copy: tensor parallel, best inside one host", type=_COUNT,
                metavar="N"),
        _option("--pp", "stages of consecutive layers, each on ranks of its own: pipeline parallel", type=_COUNT,
                metavar="N"),
        _option("--cp", "ranks that share every sequence: context parallel", type=_COUNT, metavar="N"),
    ),
    "how it runs": (
        _option(
            "--precision", "bf16, fp16: matrices in these, weights kept in fp32; fp16 with a factor on the loss that "
            "follows its range, for GPUs without bf16", choices=("fp32", "bf16", "fp16"), default="fp32",
        ),
        _option(
            "--backend", "nccl trains on GPUs, gloo on CPUs; auto: GPUs where there are any",
            choices=("auto", "nccl", "gloo"), default="auto",
        ),
        _option("--compile", "torch.compile each block", choices=("yes", "no"), default="no"),
        _option(
            "--activation-checkpointing", "keep of each block its input alone and compute the rest again in the "
            "backward pass: less memory, about a third more time", choices=("yes", "no"), default="no",
        ),
        _option(
            "--cpu-offload", "keep weights, gradients and optimizer state of fsdp in the host's memory, and step there",
            choices=("yes", "no"), default="no",
        ),
        _option(
            "--sync-interval", "ddp: ranks train separately and average their weights every N steps, and before each "
            "validation and checkpoint (local SGD); 1: gradients are averaged in every step",
            type=_COUNT, default=1, metavar="STEPS",
        ),
        _option(
            "--compress", "ddp: what gradients are sent as; powersgd (after --warmup, needs numpy) sends the least and "
            "changes the curve the most", choices=("none", "bf16", "fp16", "powersgd"), default="none",
        ),
        _option(
            "--seed", "of weights, order of samples, dropout and sample text", type=_number(int, 0, 2**32), default=0
        ),
        _option("--log-interval", "steps between log lines", type=_COUNT, default=10, metavar="STEPS"),
        _option("--sample", "text written at the end", type=_AMOUNT, default=200, metavar="BYTES"),
        _option(
            "--measure", "train nothing: measure the hosts, or also a step of this job, for disttui check --train",
            choices=("no", "hosts", "job"), default="no",
        ),
    ),
}  # fmt: skip


def _parser() -> Parser:
    parser = Parser(
        prog="bytegpt",
        allow_abbrev=False,
        formatter_class=_Help,
        description="Train a byte-level GPT. Start it with torchrun on any number of hosts, or as one process. "
        "Hosts need to share only the network: rank 0 reads the data, and writes the checkpoints if the hosts share no "
        "folder for them.",
        epilog="Exit codes: 0 trained, 1 training failed, 2 bad input, 130 interrupted; after SIGTERM it writes a "
        "checkpoint and ends by that signal. DISTTUI_METRICS: the metrics file; DISTTUI_CHECKPOINTS: the checkpoint "
        "folder (default ./checkpoints); DISTTUI_RESUME=1: --resume auto; DISTTUI_RESUME_FROM: the folder to resume "
        "from while the checkpoint folder is empty.",
    )
    for title, options in _GROUPS.items():
        group = parser.add_argument_group(title)
        for name, how in options:
            group.add_argument(name, **how)
    if os.environ.get("DISTTUI_RESUME") == "1":
        parser.set_defaults(resume="auto")
    return parser


def divide(options: Options, hosts: Sequence[int]) -> tuple[Layout, BatchPlan]:
    """How the ranks of hosts with these process counts divide the work. Raises Problem if they cannot."""
    found = _divide(options, hosts)
    if isinstance(found, Flaw):
        raise Problem(f"--{found.key.replace('_', '-')}: {found.what}: {found.cure}")
    return found


def find_flaw(options: Options, hosts: Sequence[int]) -> Optional[Flaw]:
    """The size that is wrong, None if all fit. Raises Problem if the batch cannot be divided."""
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
