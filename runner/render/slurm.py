"""Where a run's job is in Slurm's queue, in one sentence."""

from __future__ import annotations

from runner.protocol.slurm import LIVING, WAITING, Queued
from runner.text import clean

_MEANINGS = {
    "Resources": "waits for free nodes",
    "Priority": "other jobs come first",
    "Dependency": "waits for another job",
    "BeginTime": "is to begin later",
    "PartitionTimeLimit": "asks for more time than the partition allows",
    "PartitionNodeLimit": "asks for more nodes than the partition allows",
    "PartitionConfig": "no nodes of the partition are what it asks for",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "JobHeldUser": "is held by its user",
    "JobHeldAdmin": "is held by an administrator",
    "AssocGrpGRES": "the account's share of GPUs is taken",
    "QOSMaxJobsPerUserLimit": "as many of your jobs run as the QOS allows",
}
"""Slurm's reason → what it means; others are shown as they are."""


def queue_words(queued: Queued) -> str:
    """`job 12 is queued: Resources (waits for free nodes)`; empty once it has ended, which the run's end tells."""
    job, state = clean(queued["job"]), queued["state"]
    if state in WAITING:
        return f"job {job} is queued" + _because(queued["reason"], queued["start"])
    if state in LIVING and state != "COMPLETING":
        where = f" on {clean(', '.join(queued['nodes']))}" if queued["nodes"] else ""
        return f"job {job} {'runs' if state == 'RUNNING' else 'is ' + clean(state.lower())}{where}"
    return ""


def waiting_words(reason: str, start: str) -> str:
    """The reason of a queued job, for a note: `Resources (waits for free nodes), expected to start at …`."""
    return _because(reason, start).removeprefix(": ")


def _because(reason: str, start: str) -> str:
    meaning = _MEANINGS.get(reason.strip("()").partition(",")[0])
    words = clean(reason) + (f" ({meaning})" if meaning else "")
    expected = f"expected to start at {clean(start.replace('T', ' '))}" if start else ""
    said = ", ".join(word for word in (words, expected) if word)
    return f": {said}" if said else ""
