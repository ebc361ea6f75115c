"""The entry point: checks what can be checked before torch is loaded, and prints every Problem as one line."""

from __future__ import annotations

import platform
import re
import sys
import time
import warnings
from collections.abc import Sequence

from .layout import RankIdentity
from .options import Parser, divide, parse
from .problem import Problem, say, user_path
from .termination import Terminated, end_by_sigterm
from .weights import export

OLDEST_TORCH = (2, 6)


def main() -> None:
    """Run the job and exit: 0 trained, 1 training failed, 2 bad input, 130 interrupted; by SIGTERM after one."""
    place = RankIdentity()
    try:
        if sys.argv[1:2] == ["export"]:
            _export(sys.argv[2:])
            return
        place = RankIdentity.from_env()
        options = parse(sys.argv[1:])
        layout, plan = divide(options, place.hosts())
        _check_torch()
        from .job import run  # noqa: PLC0415  # loads torch

        run(options, layout, plan, place)
    except Terminated:
        end_by_sigterm()
    except Problem as problem:
        _give_up(problem, place)
    except KeyboardInterrupt:
        sys.exit(130)


def _export(arguments: Sequence[str]) -> None:
    """Write a checkpoint's weights to one file next to the checkpoint. Raises Problem."""
    parser = Parser(prog="bytegpt export", allow_abbrev=False)
    parser.add_argument("checkpoint", help="a checkpoint, or a folder of some: then the newest")
    parser.add_argument("--to", required=True, metavar="FILE", help="a name that ends with .safetensors or .pt")
    given = parser.parse_args(arguments)
    done = export(user_path(given.checkpoint), user_path(given.to))
    say(f"{given.to}: {done.tensors} tensors, {done.parameters:,} parameters of {done.checkpoint}")


def _check_torch() -> None:
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    here = f"{sys.executable} on {platform.node()}"
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        raise Problem(f"{here} cannot load torch ({error}): install torch ≥ 2.6 there", host_only=True) from None
    version = str(torch.__version__)
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_TORCH:
        raise Problem(f"{here} has torch {version}, bytegpt needs 2.6 or later: pip install -U torch", host_only=True)


def _give_up(problem: Problem, place: RankIdentity) -> None:
    """Print the problem once and exit. Silent ranks exit later: otherwise a launcher would end the one that prints."""
    if (place.local_rank if problem.host_only else place.rank) == 0:
        print(f"bytegpt: {problem}", file=sys.stderr, flush=True)
    else:
        time.sleep(10)
    sys.exit(problem.code)
