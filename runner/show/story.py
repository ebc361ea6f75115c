"""How a run ended, as a text: the result, or the one cause with what followed from it folded under it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.run.state import RunState
from runner.show.numbers import count, duration, number
from runner.text import clean, clean_lines

SIGNAL_MEANINGS = {
    "SIGKILL": "killed; the kernel's out-of-memory killer does that, or somebody's kill -9",
    "SIGSEGV": "invalid memory access in native code",
    "SIGABRT": "native code gave up (an assertion, or NCCL's watchdog)",
    "SIGBUS": "bus error: a full /dev/shm does that to DataLoader workers",
    "SIGTERM": "asked to end by something outside disttui",
    "SIGILL": "illegal instruction: a library built for another CPU",
    "SIGFPE": "arithmetic error in native code",
}


def ending(state: RunState, elapsed: float, folder: Path, launcher_tails: Mapping[str, str]) -> list[str]:
    """The lines that close the command, the true exception last where there is one.

    Args:
        launcher_tails: Host → the last lines that torchrun itself printed, for launches that failed before a rank.
    """
    result = state.result
    where = [f"logs: {folder}"]
    if result is None:
        return ["left the run going on its hosts", *where]
    kind = str(result.get("state", "ended"))
    if kind == "finished":
        return [*_trained(state, elapsed), *where]
    if kind == "stopped":
        return [f"■ {state.run} stopped after {duration(elapsed)}{_at_step(state)}", *_left(state), *where]
    return [*_failed(state, result, elapsed), *_left(state), *where, *_cause_detail(state, result, launcher_tails)]


def code_words(code: Any) -> str:
    """An exit code or signal in words: `exit code 3`, `SIGKILL (…)`."""
    if not isinstance(code, int):
        return "an unknown exit code"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
    meaning = SIGNAL_MEANINGS.get(name)
    return f"{name} ({meaning})" if meaning else name


def _trained(state: RunState, elapsed: float) -> list[str]:
    metrics = state.metrics
    words = [f"✓ {state.run} finished in {duration(elapsed)}: {state.world_size} ranks on {_hosts(len(state.hosts))}"]
    first, last = state.first_loss, number(metrics.get("loss"))
    if first is not None and last is not None:
        words.append(f"loss {first:.4g} → {last:.4g}")
    validated = number(metrics.get("val_loss"))
    if validated is not None:
        words.append(f"validation loss {validated:.4g}")
    for name, unit in (("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s"), ("steps_per_s", "steps/s")):
        value = number(metrics.get(name))
        if value is not None:
            words.append(f"{count(value)} {unit}")
            break
    return ["  ".join(words)]


def _failed(state: RunState, result: Mapping[str, Any], elapsed: float) -> list[str]:
    cause = result.get("cause") or {}
    lines = [f"✗ {state.run} failed after {duration(elapsed)}{_at_step(state)}: {cause_words(state, cause)}"]
    others = _consequences(state, cause)
    if others:
        lines.append(f"  stopped because of it: {', '.join(others)}")
    return lines


def cause_words(state: RunState, cause: Mapping[str, Any]) -> str:
    """The cause of a failure as one sentence."""
    kind = cause.get("kind")
    who = _who(state, cause)
    message = clean(str(cause.get("message") or "").strip().split("\n")[0])[:300]
    if kind == "exception":
        return f"{who} raised {clean(str(cause.get('type') or 'an exception'))}"
    if kind in ("signal", "exit"):
        return f"{who} ended with {code_words(cause.get('code'))}"
    if not message:
        return f"{who}: {clean(str(kind or 'unknown cause'))}"
    return message if message.startswith(who) else f"{who}: {message}"


def _cause_detail(state: RunState, result: Mapping[str, Any], launcher_tails: Mapping[str, str]) -> list[str]:
    cause = result.get("cause") or {}
    if cause.get("kind") == "exception":
        for event in _errors(state):
            if event.get("e") == "error" and event.get("rank") == cause.get("rank"):
                return ["", *clean_lines(str(event.get("traceback", "")).rstrip()).split("\n")]
        return ["", clean(f"{cause.get('type')}: {cause.get('message')}")]
    rest = clean_lines(str(cause.get("message") or "").strip()).split("\n")[1:]
    host = _host_name(state, cause.get("node"))
    if cause.get("kind") == "launch" and not rest and launcher_tails.get(host):
        rest = launcher_tails[host].rstrip().split("\n")[-15:]
    return ["", *rest] if rest else []


def _consequences(state: RunState, cause: Mapping[str, Any]) -> list[str]:
    seen: dict[int, str] = {}
    for host in state.hosts:
        attempt = host.story.attempts.get(state.attempt)
        for event in attempt.errors if attempt else ():
            rank = event.get("rank")
            if isinstance(rank, int) and rank != cause.get("rank"):
                seen[rank] = f"rank {rank} on {host.name}"
    return [seen[rank] for rank in sorted(seen)]


def _errors(state: RunState) -> list[Mapping[str, Any]]:
    return [
        event
        for host in state.hosts
        if state.attempt in host.story.attempts
        for event in host.story.attempts[state.attempt].errors
    ]


def _left(state: RunState) -> list[str]:
    return [
        f"! {host.name}: could not be ended: "
        + ", ".join(f"pid {item.get('pid')} ({clean(str(item.get('command', '')))[:60]})" for item in host.story.left)
        for host in state.hosts
        if host.story.left
    ]


def _who(state: RunState, cause: Mapping[str, Any]) -> str:
    host = _host_name(state, cause.get("node"))
    rank = cause.get("rank")
    return f"rank {rank} on {host}" if rank is not None else host


def _host_name(state: RunState, node: Any) -> str:
    return state.hosts[node].name if isinstance(node, int) and 0 <= node < len(state.hosts) else "the gang"


def _at_step(state: RunState) -> str:
    step = state.metrics.get("step")
    return f" at step {step}" if step is not None else ""


def _hosts(number_of: int) -> str:
    return "1 host" if number_of == 1 else f"{number_of} hosts"
