"""A plain DistributedDataParallel loop that resumes from its newest checkpoint; needs numpy beside torch.

Any torchrun starts it as well.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def newest_checkpoint() -> dict | None:
    """Rank 0 alone reads it, since hosts may not share a disk; all others get it from rank 0."""
    # disttui names both folders; a run that continues another one begins with that one's checkpoint.
    folders = (os.environ.get("DISTTUI_CHECKPOINTS", "."), os.environ.get("DISTTUI_RESUME_FROM"))
    paths = [path for folder in folders if folder and (path := Path(folder, "newest.pt")).exists()]
    have = [False] * dist.get_world_size()
    dist.all_gather_object(have, bool(paths))  # needs numpy
    if not have[0] and any(have):
        sys.exit(
            f"newest.pt is on the host of rank {have.index(True)} and not on that of rank 0, which reads it. Is a disk "
            "not mounted, or the order of hosts another? Copy it there, or remove it to begin again."
        )
    found = [torch.load(paths[0], map_location="cpu") if paths and dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    return found[0]


def save(state: dict) -> None:
    """Write a checkpoint that is whole at any time: a process may be killed in the middle."""
    path = Path(os.environ.get("DISTTUI_CHECKPOINTS", "."), "newest.pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16, help="per process")
    parser.add_argument("--lr", type=float, default=0.05)
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)  # else what is sent as an object goes through GPU 0, from each process
    dist.init_process_group()  # NCCL with GPUs, gloo without; torchrun's variables say who is who
    rank = dist.get_rank()
    torch.manual_seed(0)
    inputs = torch.randn(960, 8)
    data = TensorDataset(inputs, inputs @ torch.randn(8, 1) + 0.1 * torch.randn(960, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler)

    model = DistributedDataParallel(nn.Linear(8, 1).to(device), device_ids=[device.index] if gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    begin = 0
    if (state := newest_checkpoint()) is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["epoch"]
    if rank == 0:
        print(f"{dist.get_world_size()} processes, from epoch {begin} on")

    for epoch in range(begin, options.epochs):
        sampler.set_epoch(epoch)
        for batch, (x, y) in enumerate(loader, 1):
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and batch % 10 == 0:
                # disttui reads such a line; so does it lines of many other forms (docs/metrics.md).
                print(
                    f"epoch: {epoch} | step: {epoch * len(loader) + batch} | loss: {loss.item():.4f} | lr: {options.lr}"
                )
        if rank == 0:
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
