"""A loop with Accelerate: a small classifier, gradient accumulation, resuming from checkpoints."""

import argparse
import contextlib
import os
import platform
import shutil
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, gather_object
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINTS = Path(os.environ.get("DISTTUI_CHECKPOINTS", "checkpoints"))


def load_newest(accelerator: Accelerator) -> int:
    """Load the newest checkpoint that all hosts have, of this run or of the one that it continues; 0 for none."""
    before = os.environ.get("DISTTUI_RESUME_FROM")
    paths = [path for folder in (before, CHECKPOINTS) if folder for path in Path(folder).glob("epoch-*")]
    found = {int(path.name[6:]): path for path in paths}
    hosts = gather_object([(platform.node(), set(found))])
    epoch = max(set.intersection(*(theirs for _, theirs in hosts)), default=0)
    if epoch:
        accelerator.load_state(str(found[epoch]))
    elif newest := max(set.union(*(theirs for _, theirs in hosts)), default=0):
        lacking = ", ".join(sorted({host for host, theirs in hosts if newest not in theirs}))
        sys.exit(
            f"epoch-{newest} is not in {before or CHECKPOINTS} of {lacking}, and no other is on all hosts. "
            "Is a disk not mounted? Copy the epochs there, or remove them on all hosts to begin again."
        )
    return epoch


def save(accelerator: Accelerator, epoch: int) -> None:
    """Write a checkpoint that is whole on all hosts at any time: a process may be killed in the middle."""
    unfinished = CHECKPOINTS / f".epoch-{epoch}.part"
    accelerator.save_state(str(unfinished))
    path = CHECKPOINTS / f"epoch-{epoch}"
    if accelerator.is_local_main_process:
        shutil.rmtree(path, ignore_errors=True)  # of an attempt that ended before all hosts had this epoch
    accelerator.wait_for_everyone()
    if accelerator.is_local_main_process:
        with contextlib.suppress(FileNotFoundError):  # another host did it, on a disk that they share
            unfinished.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="per process")
    options = parser.parse_args()

    # Hosts may not share a disk, and each of them resumes from its own.
    accelerator = Accelerator(
        gradient_accumulation_steps=2, project_config=ProjectConfiguration(save_on_each_node=True)
    )
    torch.manual_seed(0)
    inputs = torch.randn(640, 8)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    begin = load_newest(accelerator)
    # accelerator.print prints once, on rank 0: disttui reads each line once.
    accelerator.print(f"{accelerator.num_processes} processes, from epoch {begin} on")

    step = begin * -(-len(loader) // 2)  # the last batch of an odd number makes a step alone
    for epoch in range(begin, options.epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                if step % 5 == 0:
                    mean = accelerator.reduce(loss.detach(), "mean").item()
                    accelerator.print(f"epoch {epoch} step {step} loss {mean:.4f}")
        save(accelerator, epoch + 1)
    accelerator.end_training()


if __name__ == "__main__":
    main()
