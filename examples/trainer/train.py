"""A small GPT-2 with random weights, trained on its own source by Hugging Face's Trainer. Nothing is downloaded."""

import argparse
import os
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

CONTEXT = 32


class Bytes(Dataset):
    """Windows of this file's bytes."""

    def __init__(self) -> None:
        self.text = torch.tensor(list(Path(__file__).read_bytes()))

    def __len__(self) -> int:
        return len(self.text) - CONTEXT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.text[index : index + CONTEXT]
        return {"input_ids": window, "labels": window}


def newest_checkpoint() -> str | None:
    """Of this run, else of the run that this one continues."""
    for folder in (os.environ.get("DISTTUI_CHECKPOINTS"), os.environ.get("DISTTUI_RESUME_FROM")):
        if folder and Path(folder).is_dir() and (found := get_last_checkpoint(folder)):
            return found
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=4, help="per process")
    options = parser.parse_args()

    arguments = TrainingArguments(
        output_dir=os.environ.get("DISTTUI_CHECKPOINTS", "checkpoints"),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        learning_rate=1e-3,
        logging_steps=5,  # disttui reads the dictionaries that Trainer prints, and the steps of its bar
        save_steps=10,
        save_total_limit=2,
        report_to="none",
        ddp_find_unused_parameters=False,
    )
    config = GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Bytes())
    if trainer.is_world_process_zero():
        print(f"{arguments.world_size} processes")
    trainer.train(resume_from_checkpoint=newest_checkpoint())


if __name__ == "__main__":
    main()
