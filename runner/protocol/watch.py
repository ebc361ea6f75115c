"""The rules of a profile's `watch`: applied on each host to its own ranks, and later to recorded runs."""

from __future__ import annotations

import math
import re
from typing import Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, TypedDict

from .metrics import NOT_FINITE, Metrics

RuleName = Literal["nonfinite", "spike", "slow", "goal", "plateau", "log", "stall", "disk", "memory", "host"]
Action = Literal["notify", "stacks", "snapshot", "stop", "restart", "rollback"]
ALARMS: Mapping[str, RuleName] = {
    "disk": "disk", "gpu memory": "memory", "memory": "memory", "swap": "memory", "throttle": "host",
    "foreign gpu": "host",
}  # fmt: skip
"""Kind of alarm → the rule that acts on it. These and stalls are reported whether or not there is such a rule."""

_PATIENCE = {"loss": 2, "grad_norm": 5}
"""Consecutive records that must not be finite: scripts may begin with a NaN, loss scaling has infinite gradients."""
_WINDOW = 128
"""Records that a spike is compared with."""
_STEPS = 20
"""Step times whose median is a rank's pace."""
AGAIN = 600.0
"""Seconds after which a recurring condition is reported again, however many ranks it affects."""
_NUMBER = re.compile(r"(?:step|checkpoint|ckpt|iter(?:ation)?)s?[-_=]?0*(\d{1,15})(?!\d)", re.IGNORECASE)


class _WatchRuleMaybe(TypedDict, total=False):
    metric: str
    above: Optional[float]
    below: Optional[float]
    times: float
    """spike: deviations from the median, in units of the scaled median absolute deviation."""
    percent: float
    """slow: percent below the rank's own best rate."""
    seconds: float
    """slow: for how long; stall: of silence."""
    pattern: str
    """log: the expression that lines are searched for."""
    absent: float
    """log: seconds without a line that matches, instead of one that does."""
    steps: float
    """plateau: steps without a new best."""


class WatchRule(_WatchRuleMaybe):
    """A rule as in spec.json."""

    rule: RuleName
    do: Action


class WatchFinding(TypedDict):
    """A rule that has fired for a rank."""

    rule: RuleName
    rank: int
    step: Optional[int]
    """The last good step, whose checkpoint may already contain the bad update."""
    text: str


class Judge:
    """Applies the rules to the metrics of one attempt's ranks; a condition is reported once, or again after 10 minutes.

    Args:
        rules: At most one of each name.
    """

    def __init__(self, rules: Sequence[WatchRule]) -> None:
        self._rules = rules
        self._ranks: Dict[int, Dict[str, _Check]] = {}
        self._fired: Dict[str, float] = {}
        self._found: List[WatchFinding] = []
        self._log = next((rule for rule in rules if rule["rule"] == "log"), None)
        self.log_pattern = self._log and self._log["pattern"]
        """The expression of `log`, None if there is no such rule."""
        self._shown: Dict[int, float] = {}
        """Rank → when its log last matched; for rank 0 also when it began."""

    def hear(self, rank: int, record: Metrics) -> None:
        """Process a record of rank-K.metrics.jsonl."""
        if rank not in self._ranks:
            self._ranks[rank] = {
                rule["rule"]: _CHECKS[rule["rule"]](rule) for rule in self._rules if rule["rule"] in _CHECKS
            }
        now = _finite(record.get("t")) or 0.0
        for check in self._ranks[rank].values():
            text = check.look(record, now)
            self._find(check.rule, rank, check.step, text, now, check.repeats)

    def hear_log(self, rank: int, matched: bool, now: float) -> None:
        """Process whether a rank's new lines match the expression of `log`; call it at every poll: silence counts."""
        if self._log is None:
            return
        pattern, absent = self._log["pattern"], self._log.get("absent")
        if matched or (rank == 0 and rank not in self._shown):
            self._shown[rank] = now
        silent = now - self._shown.get(rank, now)  # ranks that never match are not expected to
        if absent is None:
            text = "its log matches %s" % pattern if matched else ""
        else:
            text = "no line of its log has matched %s for %.0f s" % (pattern, silent) if silent > absent else ""
        self._find("log", rank, None, text, now, repeats=True)

    def _find(self, rule: RuleName, rank: int, step: Optional[int], text: str, now: float, repeats: bool) -> None:
        key = "%s %d" % (rule, rank)
        if text and (key not in self._fired or (repeats and now - self._fired[key] >= AGAIN)):
            self._fired[key] = now
            self._found.append(WatchFinding(rule=rule, rank=rank, step=step, text=text[:300]))

    def take(self) -> List[WatchFinding]:
        """Return what was found since the last call."""
        found, self._found = self._found, []
        return found


class _Check:
    repeats = False
    rule: RuleName
    step: Optional[int] = None

    def __init__(self, rule: WatchRule) -> None:
        self.rule = rule["rule"]
        self._given = rule
        self._metric = rule.get("metric", "loss")

    def look(self, record: Metrics, now: float) -> str:
        raise NotImplementedError


class _NonFinite(_Check):
    def __init__(self, rule: WatchRule) -> None:
        super().__init__(rule)
        self._runs = dict.fromkeys(_PATIENCE, 0)
        self._since: Dict[str, Optional[int]] = {}
        self._good: Dict[str, Optional[int]] = {}

    def look(self, record: Metrics, now: float) -> str:
        for name, patience in _PATIENCE.items():
            if name not in record:
                continue
            value = record[name]
            bad = value in NOT_FINITE or (isinstance(value, float) and not math.isfinite(value))
            self._runs[name] = self._runs[name] + 1 if bad else 0
            if not bad:
                self._good[name] = _whole(record.get("step"))
            elif self._runs[name] == 1:
                self._since[name] = _whole(record.get("step"))
            # Loss scaling may begin at 2**32, halved each step
            needed = 50 if name == "grad_norm" and name not in self._good else patience
            if self._runs[name] == needed:
                since = self._since[name]
                self.step = self._good.get(name)
                if self.step is None and since is not None:
                    self.step = since - 1  # the checkpoint that it resumed from may be bad
                return "%s is %s%s" % (name, value, _since(since))
        return ""


class _Spike(_Check):
    repeats = True

    def __init__(self, rule: WatchRule) -> None:
        super().__init__(rule)
        self._values: List[float] = []
        self._heard = 0
        self._high = 0
        self._first: Tuple[float, Optional[int]] = 0.0, None
        self._usual: Optional[int] = None
        """The step of the last usual value."""

    def look(self, record: Metrics, now: float) -> str:
        value = _finite(record.get(self._metric))
        if value is None:
            return ""
        self._heard += 1
        if self._heard > 64:  # records at the beginning of an attempt that are not checked for spikes
            usual = median(self._values)
            spread = 1.4826 * median([abs(one - usual) for one in self._values])
            # Otherwise a metric that hardly moves would spike with every digit, and one at 0 with every value.
            if value > usual + self._given.get("times", 8.0) * max(spread, 0.02 * abs(usual), 1e-6):
                self._high += 1
                if self._high == 1:
                    self._first = value, _whole(record.get("step"))
                if self._high == 3:  # consecutive records that must be high: single bad batches are normal
                    self.step = self._usual
                    first, step = self._first
                    return "%s %.4g%s (usual: %.4g)" % (self._metric, first, _at(step), usual)
                if self._high < _WINDOW:
                    return ""  # a new level is eventually accepted as usual
            else:
                self._high = 0
        self._usual = _whole(record.get("step"))
        self._values = [*self._values[-_WINDOW + 1 :], value]
        return ""


class _Slow(_Check):
    repeats = True

    def __init__(self, rule: WatchRule) -> None:
        super().__init__(rule)
        self._last: Optional[List[float]] = None
        self._times: List[float] = []
        self._best: Optional[float] = None
        self._since: Optional[float] = None

    def look(self, record: Metrics, now: float) -> str:
        step = _finite(record.get("step"))
        if step is None or not now:
            return ""
        last, self._last = self._last, [step, now]
        if last is None or step <= last[0] or now <= last[1]:
            return ""
        self._times = [*self._times[-_STEPS + 1 :], (now - last[1]) / (step - last[0])]
        if len(self._times) < _STEPS:
            return ""
        pace = median(self._times)
        self._best = pace if self._best is None else min(pace, self._best)
        if self._best >= (1 - self._given.get("percent", 30.0) / 100) * pace:
            self._since = None
            return ""
        self._since = now if self._since is None else self._since
        seconds = self._given.get("seconds", 300.0)
        if now - self._since < seconds:
            return ""
        return "a step takes %.3g s (best: %.3g s): slow for %.0f s" % (pace, self._best, now - self._since)


class _Goal(_Check):
    def look(self, record: Metrics, now: float) -> str:
        value = _finite(record.get(self._metric))
        above, below = self._given.get("above"), self._given.get("below")
        if value is None:
            return ""
        self.step = _whole(record.get("step"))
        if below is not None and value < below:
            return "goal reached: %s %.4g is below %.4g%s" % (self._metric, value, below, _at(self.step))
        if above is not None and value > above:
            return "goal reached: %s %.4g is above %.4g%s" % (self._metric, value, above, _at(self.step))
        return ""


class _Plateau(_Check):
    def __init__(self, rule: WatchRule) -> None:
        super().__init__(rule)
        self._best: Optional[float] = None
        self._best_step = 0.0
        self._sign = -1.0 if rule.get("above") is not None else 1.0

    def look(self, record: Metrics, now: float) -> str:
        value, step = _finite(record.get(self._metric)), _finite(record.get("step"))
        if value is None or step is None:
            return ""
        if self._best is None or self._sign * value < self._sign * self._best - 1e-3 * abs(self._best):
            self._best, self._best_step = value, step
        elif step - self._best_step >= self._given.get("steps", 1000.0):
            self.step = _whole(self._best_step)
            passed = step - self._best_step
            return "%s has not improved on %.4g for %.0f steps" % (self._metric, self._best, passed)
        return ""


_CHECKS: Mapping[RuleName, Callable[[WatchRule], _Check]] = {
    "nonfinite": _NonFinite, "spike": _Spike, "slow": _Slow, "goal": _Goal, "plateau": _Plateau,
}  # fmt: skip


def step_of_name(name: str) -> Optional[int]:
    """The step in the name of a checkpoint, as in `checkpoint-500`, `step-000040-a1.pt` or `epoch=1-step=500.ckpt`."""
    found = _NUMBER.findall(name)
    return int(found[-1]) if found else None


def _finite(value: object) -> Optional[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _whole(value: object) -> Optional[int]:
    number = _finite(value)
    return None if number is None or abs(number) >= 2**53 else int(number)


def median(values: Sequence[float]) -> float:
    """The middle value of at least one, or the mean of both middle values."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _at(step: Optional[int]) -> str:
    return "" if step is None else " at step %d" % step


def _since(step: Optional[int]) -> str:
    return "" if step is None else " since step %d" % step
