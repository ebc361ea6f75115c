"""A Lightning module on several hosts. Its Trainer is told the hosts and processes by torchrun's variables."""

import argparse
import os
import platform
import sys
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log("loss", loss, prog_bar=True, sync_dist=True)  # disttui reads the progress bar
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class OnEachHost(DDPStrategy):
    """DDP that saves on each host: they may not share a disk, and each of them resumes from its own."""

    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        if self.local_rank == 0:
            Path(filepath).unlink(missing_ok=True)  # of an attempt that ended before all hosts had this epoch
        self.barrier()
        if self.local_rank == 0:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)


def newest_checkpoint() -> str | None:
    """The newest that all hosts have, of this run or of the one that it continues."""
    before, ours = os.environ.get("DISTTUI_RESUME_FROM"), os.environ.get("DISTTUI_CHECKPOINTS", "checkpoints")
    paths = [path for folder in (before, ours) if folder for path in Path(folder).glob("epoch=*.ckpt")]
    found = {int(path.stem[6:]): str(path) for path in paths}
    hosts = [("", set())] * dist.get_world_size()
    dist.all_gather_object(hosts, (platform.node(), set(found)))
    if common := set.intersection(*(theirs for _, theirs in hosts)):
        return found[max(common)]
    if (newest := max(set.union(*(theirs for _, theirs in hosts)), default=-1)) >= 0:
        lacking = ", ".join(sorted({host for host, theirs in hosts if newest not in theirs}))
        sys.exit(
            f"epoch={newest}.ckpt is not in {before or ours} of {lacking}, and no other is on all hosts. "
            "Is a disk not mounted? Copy the checkpoints there, or remove them on all hosts to begin again."
        )
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="per process")
    options = parser.parse_args()

    dist.init_process_group()  # Lightning takes it as its own; it is needed before, to agree on a checkpoint
    lightning.seed_everything(0, workers=True, verbose=False)
    inputs = torch.randn(640, 8)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    checkpoints = os.environ.get("DISTTUI_CHECKPOINTS", "checkpoints")
    trainer = lightning.Trainer(
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),  # Lightning wants the same number of processes on each host
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        accelerator="auto",
        strategy=OnEachHost(),
        max_epochs=options.epochs,
        callbacks=[
            TQDMProgressBar(refresh_rate=5),
            ModelCheckpoint(checkpoints, filename="{epoch}", save_top_k=-1, enable_version_counter=False),
        ],
        logger=False,
        enable_model_summary=False,
    )
    if trainer.is_global_zero:
        print(f"{trainer.world_size} processes")
    loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
    trainer.fit(Classifier(), loader, ckpt_path=newest_checkpoint())


if __name__ == "__main__":
    main()
