"""A taste of what the model has learned."""

from __future__ import annotations

from typing import Any

import torch


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
