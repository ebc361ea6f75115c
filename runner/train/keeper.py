"""Writes a run's checkpoints and resumes from one: what must match, and what only causes a warning."""

from __future__ import annotations

import os
import platform
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from . import checkpoint
from .group import TIMEOUT, from_all, from_rank0
from .index import SavedProgress, is_one
from .problem import Problem, say, user_path
from .state import (
    Holdings,
    Parameters,
    Shares,
    Tensors,
    begin_moments,
    fill,
    fill_from_rank0,
    gather,
    holdings,
    is_spread,
    share,
    tensors,
)

SHAPE = ("layers", "heads", "width")
"""Parts of a recipe that determine the shape of weights: a checkpoint with other values cannot be loaded."""

Recipe = Mapping[str, Union[int, float, str]]
"""The options that influence a loss curve, by name."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to resume from (step 0: none), as rank 0 describes it to every rank."""

    step: int = 0
    samples: int = 0
    scaling: Mapping[str, float] = field(default_factory=dict)
    """The state of LossScale; empty unless training in fp16."""
    path: str = ""
    token: str = ""
    """See SavedProgress."""
    notes: Sequence[str] = ()


class Keeper:
    """The checkpoint folder of a run. Checkpoints are written in the background, from copies.

    If all ranks see the folder and none holds everything, each rank writes its own parts; otherwise rank 0 gathers
    everything and writes it on its host.

    Args:
        folder: Where checkpoints are written and, with `--resume auto`, searched for.
        recipe: The recipe that they must match.
        every: Steps between two checkpoints; 0 writes none.
        form: auto, file or sharded.
    """

    def __init__(self, folder: Path, recipe: Recipe, every: int, form: str, device: Any) -> None:
        self._folder = folder
        self._recipe = dict(recipe)
        self._every = every
        self._form = form
        self._device = device
        attempt = os.environ.get("DISTTUI_ATTEMPT", "")
        given = int(attempt) if attempt.isdecimal() else None
        self._attempt = from_rank0(lambda: checkpoint.prepare(folder, given) if every else 0, device)
        self._thread: Optional[threading.Thread] = None
        """Writes the last checkpoint. A daemon: a process whose peers are gone must be able to end."""
        self._holdings: Holdings = {}
        self._group: Any = None
        """The group of the ranks' writing threads; None if rank 0 has everything."""
        self._sharded = False
        self.newest = 0
        """The step of the last checkpoint that rank 0 has seen complete."""

    def resume(self, source: str, parameters: Parameters, optimizer: Any) -> FoundCheckpoint:
        """Load the checkpoint that `source` (auto, no, a path) selects into every rank. A collective.

        Parts are checked when they are read: a checkpoint that is then found damaged is also skipped. Raises Problem if
        none can be loaded, or it was made by a model of another shape.
        """
        self._holdings = holdings(parameters, self._device)
        notes = self._choose_form() if self._every else []
        opened: Optional[checkpoint.OpenCheckpoint] = None
        damaged: dict[Path, str] = {}

        def find() -> dict[str, Any]:
            nonlocal opened
            opened, notes = self._locate(source, damaged)
            if opened is None:
                return {"notes": notes}
            progress, path = opened.progress, opened.path
            notes += _compare(path, progress["recipe"], self._recipe)
            _compare_shapes(opened, self._holdings)
            notes.append(f"resumed from {path} after step {progress['step']}")
            kept = {key: value for key, value in progress.items() if key != "recipe"}
            return {**kept, "path": str(path), "notes": notes}

        while True:
            found = FoundCheckpoint() if source == "no" else FoundCheckpoint(**from_rank0(find, self._device))
            if found.step:
                begin_moments(parameters, optimizer, found.step - int(found.scaling.get("skipped", 0)))
                try:
                    self._load(found, opened, tensors(parameters, optimizer))
                except Problem as problem:  # on all ranks
                    damaged[Path(found.path)] = str(problem)
                    continue
            return replace(found, notes=[*notes, *found.notes])

    def _choose_form(self) -> list[str]:
        """Choose how checkpoints are written; returns a note if that is unexpected. A collective."""
        spread = is_spread(self._holdings, dist.get_world_size())
        if spread or self._form == "sharded":
            # The writing threads need their own group: two threads in one group would receive each other's messages.
            self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        if self._form == "file" or (self._form == "auto" and not spread):
            return []
        self._sharded = is_shared(self._folder, self._device)
        if self._sharded:
            return []
        why = f"{self._folder} is not the same folder on all hosts"
        if self._form == "sharded":
            raise Problem(
                f"--checkpoint-format sharded: {why}: set DISTTUI_CHECKPOINTS to one that is, or leave it out"
            )
        return [f"{why}: rank 0 gathers each checkpoint and writes it alone"]

    def _load(self, found: FoundCheckpoint, opened: Optional[checkpoint.OpenCheckpoint], mine: Tensors) -> None:
        """Fill the tensors of this rank: from the folder itself if all ranks see it, otherwise through rank 0."""
        if not dist.get_rank():
            assert opened is not None
        elif found.token and Path(found.path).is_dir():
            with suppress(Problem):  # the folder with that name on this host may contain anything
                there = checkpoint.OpenCheckpoint(Path(found.path))
                opened = there if there.progress["token"] == found.token else None
        if not all(from_all(opened is not None, self._device)):
            read = opened.read if opened else lambda name, wanted: None
            fill_from_rank0(mine, self._holdings, read, self._device)
            return
        problem = ""
        try:
            fill(mine, opened.read)  # type: ignore[union-attr]
        except Problem as error:
            problem = str(error)
        for text in from_all(problem, self._device):
            if text:
                raise Problem(text)

    def _locate(
        self, source: str, damaged: Mapping[Path, str]
    ) -> tuple[Optional[checkpoint.OpenCheckpoint], list[str]]:
        path = self._folder if source == "auto" else user_path(source)
        if source != "auto" and is_one(path):
            if path in damaged:
                raise Problem(damaged[path])
            return checkpoint.OpenCheckpoint(path), []
        found, notes = checkpoint.newest(path, damaged)
        before = os.environ.get("DISTTUI_RESUME_FROM", "") if source == "auto" else source
        if found is None and source == "auto" and before:
            one = user_path(before)
            if is_one(one) and one.is_dir() and one not in damaged:
                return checkpoint.OpenCheckpoint(one), notes
            found, others = checkpoint.newest(one, damaged)
            notes += others
        if found is None and (before or damaged):  # the model contains what was read of a damaged one
            raise Problem(". ".join([*notes, f"--resume {source}: no complete checkpoint in {before or path}"]))
        return found, notes

    @property
    def enabled(self) -> bool:
        """Whether checkpoints are written at all."""
        return bool(self._every)

    def is_due(self, step: int, *, last: bool) -> bool:
        """Whether a checkpoint is due after this step."""
        return self.enabled and (step % self._every == 0 or last)

    def save(
        self, step: int, samples: int, parameters: Parameters, optimizer: Any, scaling: Mapping[str, float]
    ) -> None:
        """Start writing a checkpoint. A full disk costs the checkpoint, not the run. A collective."""
        self.close()
        dist.barrier()  # the other ranks wait for the disk here, not in a step, where a SIGTERM would end them soon
        progress: SavedProgress = {
            "step": step,
            "samples": samples,
            "recipe": self._recipe,
            "scaling": scaling,
            "token": secrets.token_hex(16),
        }
        shares = share(tensors(parameters, optimizer), self._holdings, dist.get_rank(), evenly=self._sharded)
        if shares or self._group is not None:
            thread = threading.Thread(target=self._write, args=(step, shares, progress), name="checkpoint", daemon=True)
            thread.start()
            self._thread = thread  # not before: the thread that waits for a SIGTERM may join it

    def close(self) -> None:
        """Wait until the checkpoints are written. All ranks must call it, each from any thread."""
        if self._thread is not None:
            self._thread.join()

    def close_alone(self) -> None:
        """Wait until the checkpoints are written, if that needs no other rank."""
        if self._group is None:
            self.close()

    def _write(self, step: int, shares: Shares, progress: SavedProgress) -> None:
        rank, unfinished = dist.get_rank(), checkpoint.path_of(self._folder, step, self._attempt).with_suffix(".tmp")
        entries: list[checkpoint.Entry] = []
        problem = ""
        try:
            if not self._sharded:
                shares = gather(shares, self._holdings, self._group)
                if rank:
                    return
            try:
                entries = checkpoint.write_parts(unfinished, rank, shares)
            except OSError as error:
                problem = f"{error.strerror} (rank {rank}, {platform.node()})"
            answers: Sequence[Any] = [[entries, problem]]
            if self._sharded:
                answers = from_all(answers[0], torch.device("cpu"), self._group)
        except RuntimeError:
            return  # a rank is gone, which the training itself reports
        if rank:
            return
        problem = next((text for _, text in answers if text), "")
        try:
            if not problem:
                checkpoint.finish(unfinished, self._holdings, [written for written, _ in answers], progress)
                self.newest = step
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            checkpoint.remove(unfinished)
            say(f"note: no checkpoint of step {step} in {self._folder}: {problem}")


def _compare_shapes(opened: checkpoint.OpenCheckpoint, where: Holdings) -> None:
    """Raise Problem if the checkpoint lacks a tensor, or has it in another shape."""
    for name, held in where.items():
        stored = opened.tensors.get(name)
        shape = stored.shape if stored else None
        if shape != held.shape:
            theirs = "none" if shape is None else " × ".join(map(str, shape))
            raise Problem(f"checkpoint {opened.path} has {theirs} for {name}, where this model has {held.shape}")


def _compare(path: Path, theirs: Recipe, ours: Recipe) -> list[str]:
    """Notes on differences. Raises Problem if the shape of the weights differs."""
    if any(theirs.get(name) != ours[name] for name in SHAPE):
        wanted = " ".join(f"--{name} {theirs.get(name)}" for name in SHAPE)
        given = " ".join(f"--{name} {ours[name]}" for name in SHAPE)
        raise Problem(f"checkpoint {path} was made with {wanted}, this run has {given}: pass the same, or --resume no")
    changed = [name for name in ours if theirs.get(name) != ours[name]]
    if not changed:
        return []
    changes = ", ".join(f"{name} {ours[name]} (was {theirs.get(name)})" for name in changed)
    return [f"the loss curve will differ from the checkpoint's: {changes}"]


def is_shared(folder: Path, device: Any) -> bool:
    """Whether every rank sees in the folder what rank 0 writes to it. A collective."""

    def leave() -> list[str]:
        probe, token = folder / f".shared-{secrets.token_hex(8)}", secrets.token_hex(16)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.write_text(token)
        except OSError:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
            return ["", ""]
        return [probe.name, token]

    name, wanted = from_rank0(leave, device)
    try:
        seen = bool(name) and (folder / name).read_text() == wanted
    except (OSError, ValueError):
        seen = False
    everywhere = all(from_all(seen, device))
    if name and not dist.get_rank():
        with suppress(OSError):
            (folder / name).unlink()
    return everywhere
