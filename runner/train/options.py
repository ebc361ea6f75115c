"""The command line: every option with its unit and its reason."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Optional

from .batching import DEFAULT_BATCH_SIZE
from .problem import Problem


@dataclass(frozen=True)
class Options:
    """What the command line says; the options' own help says what each means."""

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
    resume: str
    strategy: str
    precision: str
    backend: str
    compile: str
    seed: int
    log_interval: int
    sample: int


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        return action.help if action.default is None else super()._get_help_string(action)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Problem(f"{message} (--help lists the options)")


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line. Raises Problem naming the option that is wrong."""
    options = Options(**vars(_parser().parse_args(arguments)))
    if options.width % (2 * options.heads):
        raise Problem(
            f"--width {options.width} must be a multiple of twice --heads {options.heads}, "
            f"so that every head gets an even share: {options.heads * 32} would do"
        )
    if options.global_batch and options.lr_scaling != "none":
        raise Problem("--lr-scaling is for a batch that grows with the ranks; --global-batch fixes it: drop one")
    return options


def _number(kind: Callable[[str], float], low: float, high: float = math.inf) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None
        if not low <= value <= high or math.isinf(value):
            limits = f"at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"must be {limits}, not {text}")
        return value

    return convert


def _parser() -> _Parser:
    count, amount = _number(int, 1), _number(int, 0)
    real, ratio = _number(float, 0), _number(float, 0, 1)
    parser = _Parser(
        prog="bytegpt",
        allow_abbrev=False,
        formatter_class=_Help,
        description="Train a byte-level GPT. Start it with torchrun on any number of hosts, or as one process. "
        "Nothing is shared between hosts but the network: rank 0 reads the data and keeps the checkpoints.",
        epilog="Exit codes: 0 trained, 1 training failed, 2 bad input. DISTTUI_METRICS names the metrics file, "
        "DISTTUI_CHECKPOINTS the checkpoint folder (default ./checkpoints), DISTTUI_RESUME=1 means --resume auto.",
    )
    group = parser.add_argument_group("length and batch (a sample is one block of --context bytes)")
    group.add_argument("--steps", type=count, default=300, help="optimizer steps in all")
    group.add_argument(
        "--batch-size",
        type=count,
        metavar="N",
        help=f"samples per rank and round ({DEFAULT_BATCH_SIZE} unless --global-batch says otherwise)",
    )
    group.add_argument(
        "--accumulate",
        type=count,
        metavar="N",
        help="rounds whose gradients make one step (1 unless --global-batch says otherwise)",
    )
    group.add_argument(
        "--global-batch", type=count, metavar="N",
        help="samples of one step over all ranks; --batch-size or --accumulate follows from it. Losses then do "
        "not depend on the number of ranks",
    )  # fmt: skip
    group = parser.add_argument_group("optimizer (AdamW, warm-up, then cosine)")
    group.add_argument("--lr", type=real, default=3e-3, help="peak learning rate of one rank")
    group.add_argument(
        "--lr-scaling", choices=("none", "linear", "sqrt"), default="none",
        help="how --lr grows with the number of ranks, each of which adds its batch: sqrt suits Adam (the noise of "
        "its steps falls with the root of the batch), linear suits SGD, none keeps a run stable that was tuned "
        "at this size",
    )  # fmt: skip
    group.add_argument("--warmup", type=amount, default=20, metavar="STEPS", help="steps from 0 to the peak")
    group.add_argument(
        "--min-lr-ratio", type=ratio, default=0.1, metavar="SHARE", help="last learning rate as a share of the peak"
    )
    group.add_argument("--weight-decay", type=real, default=0.1, help="on matrices only")
    group.add_argument("--clip", type=real, default=1.0, help="largest norm of the gradient, 0: no clipping")
    group = parser.add_argument_group("model")
    group.add_argument("--layers", type=count, default=4, help="transformer blocks")
    group.add_argument("--heads", type=count, default=4, help="attention heads")
    group.add_argument("--width", type=count, default=128, help="size of the residual stream")
    group.add_argument("--context", type=count, default=128, metavar="BYTES", help="length of a sample")
    group.add_argument("--dropout", type=_number(float, 0, 0.99), default=0.0, help="share of activations dropped")
    group = parser.add_argument_group("data and validation")
    group.add_argument(
        "--data", metavar="PATH", help="text file or folder on the host of rank 0; not given: Python's own library"
    )
    group.add_argument("--val-interval", type=amount, default=50, metavar="STEPS", help="0: only at the end")
    group.add_argument("--val-batches", type=count, default=4, metavar="N", help="held-out batches, each global")
    group = parser.add_argument_group("checkpoints (full state, on the host of rank 0, newest two kept)")
    group.add_argument("--checkpoint-interval", type=amount, default=100, metavar="STEPS", help="0: none")
    group.add_argument(
        "--resume", default="auto" if os.environ.get("DISTTUI_RESUME") == "1" else "no", metavar="auto|no|PATH",
        help="auto: from the newest complete checkpoint of the folder if there is one; PATH: from this file or "
        "folder. Any number of ranks may go on with it; with the same global batch the loss curve is the same",
    )  # fmt: skip
    group = parser.add_argument_group("how it runs")
    group.add_argument(
        "--strategy", choices=("ddp", "fsdp"), default="ddp",
        help="ddp: a whole copy per rank; fsdp: weights, gradients and optimizer state sharded over all ranks",
    )  # fmt: skip
    group.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="bf16: matrices in bf16, weights kept in fp32"
    )
    group.add_argument(
        "--backend", choices=("auto", "nccl", "gloo"), default="auto",
        help="nccl trains on GPUs, gloo on CPUs; auto: GPUs where there are any",
    )  # fmt: skip
    group.add_argument("--compile", choices=("yes", "no"), default="no", help="torch.compile each block")
    group.add_argument(
        "--seed", type=_number(int, 0, 2**32), default=0, help="of weights, order of samples, dropout and sample text"
    )
    group.add_argument("--log-interval", type=count, default=10, metavar="STEPS", help="steps between log lines")
    group.add_argument("--sample", type=amount, default=200, metavar="BYTES", help="text written at the end")
    return parser
