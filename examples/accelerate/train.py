"""A loop with Accelerate: a small classifier, gradient accumulation, checkpoints that it goes on from."""

import argparse
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def newest_checkpoint() -> str | None:
    """Of this run, else of the run that this one continues."""
    for folder in (os.environ.get("DISTTUI_CHECKPOINTS"), os.environ.get("DISTTUI_RESUME_FROM")):
        found = sorted(Path(folder).glob("epoch-*"), key=lambda path: int(path.name[6:])) if folder else []
        if found:
            return str(found[-1])
    return None


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

    begin = 0
    if (path := newest_checkpoint()) is not None:
        accelerator.load_state(path)
        begin = int(Path(path).name[6:])
    # accelerator.print prints once, on rank 0: disttui reads each line once.
    accelerator.print(f"{accelerator.num_processes} processes, from epoch {begin} on")

    step = begin * (len(loader) // 2)
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
        folder = Path(os.environ.get("DISTTUI_CHECKPOINTS", "checkpoints"))
        accelerator.save_state(str(folder / f"epoch-{epoch + 1}"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
