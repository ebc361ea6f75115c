"""Finds the metrics in the lines of one rank, whose meaning may depend on earlier lines, and in its progress bars."""

from __future__ import annotations

import csv
import re
from typing import List, NamedTuple, Optional, Set, Tuple

from .patterns import (
    HINTS,
    LONGEST,
    Record,
    Value,
    as_validated,
    canonical,
    first_epoch,
    pairs,
    put,
    put_losses,
    recognise,
    settle_loss,
)

# Epoch 1/3:  12%|█▏  | 12/100 [00:01<00:10, 8.1it/s, loss=1.2], 12% 12/100 [00:01<00:10, 8.1it/s] in notebooks, and
# 12it [00:01, 8.1it/s] if the end is not known.
_BAR = re.compile(
    r"(?:^|\||: |(?<=\d%)\s)\s{0,12}(\d{1,12})(?:/(\d{1,12})|it)\s{1,12}\[(?:[^\],]{1,40},\s{0,12}"
    r"(?:\d{1,12}(?:\.\d{1,12})?|\?)\s?(?:it|step|batch|s)/(?:it|step|batch|s)|[\d:]{4,12}<[\d:?]{1,12})"
    r"(?:,([^\]]*))?\]"
)
# Bars that do not count steps: 2/3 [07:43<03:51, 231.64s/epoch], 500/60000 [00:01<00:10, 512.3samples/s]
_OTHER_UNIT = re.compile(
    r"[\d?]\s?(?:[mu]?s/(?:epoch|sample|example|img|image|tok|token)|(?:epoch|sample|example|img|image|tok|token)s?/s)\b",
    re.IGNORECASE,
)
# Rich's bars: Epoch 0/9 ━━━━╸ 12/100 0:00:01 • 0:00:10 8.10it/s train_loss: 1.20; times and speed may be absent.
_RICH = re.compile(
    r"(?<![━╸╺─])(?<![━╸╺─] )[━╸╺─][━╸╺─ ]{3,400}\s(?:\d{1,3}%\s{1,4})?(\d{1,12})/(\d{1,12})(?![\d.])"
    r"(?:\s{1,4}[\d:-]{4,12}){0,2}(?: • [\d:-]{4,12})?(?:\s{1,4}\d{1,12}(?:\.\d{1,12})?\s?it/s)?(.*)"
)
# Keras prints the epoch on its own line: 12/100 [==>...] - ETA: 9s - loss: 1.2, 12/100 ━━━ 9s 3ms/step - loss: 1.2
_KERAS = re.compile(
    r"\s{0,12}(\d{1,12})/(?:(\d{1,12})|Unknown) (?:\[[=>.]{1,80}\]|━{1,80}|(?=- \d{1,6}m?s ))(.*)$", re.IGNORECASE
)
_HEADING = re.compile(r"epoch:? (\d{1,6})/(\d{1,6})\s{0,12}$", re.IGNORECASE)
# torchtune shows epoch, step of the run and loss before an epoch's bar: 2|110|Loss: 1.2345678:   2%|
_HEADED = re.compile(r"(\d{1,6})\|(\d{1,12})\|")
# ultralytics prints a row of numbers, with names in an earlier line: 1/100 2.36G 1.185 2.345 1.234 32 640: 100%|
_COLUMNS = re.compile(r"\s{1,12}Epoch\s{1,12}GPU_mem((?:\s{1,12}[\w-]{1,20}){1,12})\s*$")
_ROW = re.compile(r"\s{1,12}(\d{1,6})/(\d{1,6})\s{1,12}[\d.]{1,12}[GM]((?:\s{1,12}[\d.]{1,12}){1,12})$")
_TRAINING = re.compile(r"epoch|train|step|iter", re.IGNORECASE)
_NOT_TRAINING = re.compile(r"val(?!ue)|test|eval|predict|sanity|\bdev\b", re.IGNORECASE)
# Bars of preparations, which may mention training: Loading train data, Tokenizing train split
_PREPARES = re.compile(
    r"load|fetch|token|process|prepar|read|cach|map|filter|generat|extract|convert|pack|index|build|encod|download",
    re.IGNORECASE,
)
# Lightning's title, which names neither the first nor the last epoch.
_UNCOUNTED_EPOCH = re.compile(r"epoch (\d{1,6})$", re.IGNORECASE)
_OF_EPOCHS = re.compile(r"(?:\w{1,20} )?epochs?$", re.IGNORECASE)
_OVER_EPOCHS = re.compile(r"(?:\w{1,20} )?epochs$", re.IGNORECASE)
_EPOCH = re.compile(r"epoch\s{0,8}[:=#]?\s{0,4}\[?\s{0,4}(\d{1,6})(?:\s?/\s?(\d{1,6}))?", re.IGNORECASE)


class _Above(NamedTuple):
    """The count of epochs that a line or a bar shows above the bar of each epoch."""

    number: int
    left: int
    """Epochs from this one on; 0 if unknown."""
    is_epoch: bool
    """Whether `number` is that of the epoch, and not of those that are over."""


class Bars:
    """The bars of one rank. Scripts also show bars for downloads and evaluation: a bar counts if it shows a loss, or if
    its title is empty or a training's and its length is that of the bars that counted before.

    The speed that a bar shows is not read: after a checkpoint it may count the steps before it.

    Args:
        from_0: Whether an earlier attempt has shown that the script counts its epochs from 0.

    Attributes:
        step: Steps made in the whole run, None before the first bar.
        lines_count: Whether lines of the log count the training's steps: a later bar is an evaluation's.
    """

    def __init__(self, *, from_0: bool = False) -> None:
        self.step: Optional[int] = None
        self.lines_count = False
        self._first_epoch = 0 if from_0 else 1
        self._total = 0
        self._epoch = 0
        self._earlier = 0
        """Steps of earlier epochs, each of which had its own bar."""
        self._confirmed = False
        """Whether a loss was shown in or during the bars that count: a script may process files before."""
        self._columns: List[str] = []
        self._rows_from_0 = False
        self._title = ""
        self._heading: Optional[str] = None
        """The newest line that names the epoch of the bars below it, "" if that epoch is over."""
        self._from_0 = False
        """Whether such lines count epochs from 0."""
        self._above: Optional[_Above] = None
        self._below: Optional[_Above] = None
        """What was above the newest bar, with the epochs that were left at the first one."""

    def recognise(self, line: str, *, validates: bool = False) -> Optional[Record]:
        """The metrics of a line that is a bar, empty if the bar does not count; None for any other line.

        Args:
            validates: Whether the line above begins a validation.
        """
        if len(line) > LONGEST:
            return None
        bar = _BAR.search(line) or _RICH.search(line) or _KERAS.match(line)
        if bar is None:
            self._note_heading(line)
            return None
        done, total, rest = bar.groups()
        title = _title(line[: bar.start()])
        if bar.re is _KERAS and self._heading is not None:
            other = self._total and int(total or 0) != self._total
            if self._heading == self._title and (other or self._earlier + int(done) < (self.step or 0)):
                self._heading = ""  # an evaluation: an epoch has one bar
            if not self._heading:
                return {}
            title = self._heading
        found = pairs(rest or "")
        put_losses(found, rest or "")
        settle_loss(found)
        found = found or self._in_title(title) or recognise(line[bar.end() :]) or {}
        found.pop("v_num", None)  # Lightning's log folder number
        trains = any(name.endswith("loss") for name in found)
        self._give_up(int(total or 0), title, trains=trains)
        if _OF_EPOCHS.match(title) and not trains and int(total or 0) > 1:
            self._above = _Above(int(done), max(0, int(total) - int(done)), False)
        if not self._counts(title, int(total or 0), trains, validates) or (bar.re is _KERAS and not trains):
            return {}
        if _OTHER_UNIT.search(bar.group()):
            return found
        if _OVER_EPOCHS.match(title):
            return {**found, "epoch": int(done)}
        epochs = _EPOCH.search(title) if bar.re is _RICH and "it/s" in bar.group() else None
        self._confirmed = self._confirmed or trains
        if epochs and epochs.group(2):
            found.update(self._by_lightning(int(done), int(total or 0), *map(int, epochs.groups())))
        else:
            found.update(self._progress(int(done), int(total or 0), title))
        return found

    def _note_heading(self, line: str) -> None:
        """Note the names of columns, or the epoch, of the bars below a line."""
        columns, heading = _COLUMNS.match(line), _HEADING.match(line)
        if columns:
            self._columns = columns.group(1).split()
        elif heading:
            self._heading = line.strip().replace(":", "")
            number, epochs = map(int, heading.groups())
            # From 0, the total may be the number of the last epoch.
            self._from_0 = self._from_0 or not number
            self._above = _Above(number, 0 if self._from_0 else max(0, epochs - number + 1), True)

    def confirm(self, record: Record, line: str) -> None:
        """Note that the bars so far are the training's, if a line has a loss or ends the training."""
        trained = bool(record.keys() & {"loss", "val_loss"}) or "train_runtime" in line
        self._confirmed = self._confirmed or (trained and self.step is not None)

    def step_at(self, line: str) -> Optional[int]:
        """The step that the training's bar shows in a line, None if the line is not this bar or has gone back."""
        bar = (_BAR.search(line) or _RICH.search(line)) if len(line) <= LONGEST else None
        if bar is None or self.step is None or _title(line[: bar.start()]) or int(bar.group(2) or 0) != self._total:
            return None
        step = self._earlier + int(bar.group(1))
        return step if step >= self.step else None

    def _in_title(self, title: str) -> Record:
        row = _ROW.match(title)
        found = pairs(title) if row is None else {}
        if row is None:
            put_losses(found, title)
            return found
        for name, number in zip(self._columns, row.group(3).split()):  # noqa: B905 (Python 3.8)
            if name.endswith("loss"):
                put(found, name, number)
        return found

    def _give_up(self, total: int, title: str, *, trains: bool) -> None:
        """Forget bars that were not the training's: they showed no loss, are over, and others follow."""
        over = self.step is not None and (not self._total or self.step - self._earlier == self._total)
        follows = (trains or not title) and not _NOT_TRAINING.search(title) and total != self._total
        if over and follows and not self._confirmed:
            self.step, self._total, self._earlier = None, 0, 0

    def _counts(self, title: str, total: int, trains: bool, validates: bool) -> bool:
        if validates and not title and self._total not in (0, total):
            return False
        if trains or _NOT_TRAINING.search(title):
            return not _NOT_TRAINING.search(title)
        if _OF_EPOCHS.match(title) or (self.lines_count and self.step is None):
            return False  # around the bar of each epoch
        named = bool(_TRAINING.search(title)) and (_EPOCH.search(title) or not _PREPARES.search(title))
        return (not title or bool(named)) and (self.step is None or total == self._total)

    def _by_lightning(self, done: int, total: int, epoch: int, newest: int) -> Record:
        """Epochs count from 0 and the last epoch's number is shown: any bar gives the step and the total."""
        self._total, self._earlier = total, epoch * total
        self.step = self._earlier + done
        return {"step": self.step, "epoch": epoch, "steps": (newest + 1) * total}

    def _of_an_epoch(self, above: _Above, total: int, *, again: bool, goes_on: bool) -> Record:
        """The epoch and the number of steps of a bar below a count of epochs, which is an epoch's bar or the run's."""
        last = self._below or above
        left = last.left
        if above.number < last.number:
            left = 0  # another training
        elif above.number > last.number and goes_on and not (again or self._earlier):
            left = 1  # the bar is the run's
        self._below = above._replace(left=left)
        found: Record = {"epoch": above.number} if above.is_epoch else {}
        if total and (left == 1 or (left and self._earlier)):
            found["steps"] = total * left
        return found

    def _progress(self, done: int, total: int, title: str) -> Record:
        found: Record = {}
        headed, row = _HEADED.match(title), _ROW.match(title)
        epoch = _EPOCH.search(title) or row or headed
        number = int(epoch.group(1)) if epoch else 0
        self._rows_from_0 = self._rows_from_0 or (row is not None and number == 0)
        before = 0 if self.step is None else self.step - self._earlier
        # A line per epoch that is not redrawn: the same step of a later epoch.
        again = self.step is not None and (done < before or (done == total == before and number > self._epoch))
        if again:
            self._earlier += self._total or before
        elif self.step is None and total:
            begun, counted = _UNCOUNTED_EPOCH.match(title), _EPOCH.search(title)
            if begun and int(begun.group(1)) > self._first_epoch:
                # Continues from a checkpoint; with 1, the epochs may be counted from 1.
                self._earlier = int(begun.group(1)) * total
            elif counted and counted.group(2) and int(counted.group(2)) != total:  # otherwise it counts the epochs
                self._earlier = max(0, int(counted.group(1)) - self._first_epoch) * total
        if headed:
            self._earlier = max(0, int(headed.group(2)) - done)
        self._total, self._epoch, self._title = total, number, title
        self.step = self._earlier + done
        found["step"] = self.step
        epochs = int(epoch.group(2) or 0) if epoch and epoch is not headed else 0
        epochs += epoch is row and self._rows_from_0  # YOLOv5 shows the number of the last one
        if epoch:
            found["epoch"] = number
        elif self._above:
            return {**found, **self._of_an_epoch(self._above, total, again=again, goes_on=done > before)}
        if epochs and total and (epochs != total or self._earlier or row):
            found["steps"] = total * epochs
        elif total and not self._earlier and (epochs or not epoch):
            found["steps"] = total
        return found


_RULES = re.compile(r"[│┃]")
_NAME = re.compile(r"[A-Za-z][\w./@%() -]{0,40}")
_CELL = re.compile(
    r"[-+]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,3})?%?|[-+]?(?:nan|inf)", re.IGNORECASE
)


class _Table:
    """Rows of numbers under column names: CSV, and the tables of skorch, fastai, tabulate, rich and markdown."""

    def __init__(self) -> None:
        self._names: List[Tuple[int, int, str]] = []
        self._mark = ""

    def recognise(self, line: str) -> Optional[Record]:
        """The metrics of a row, None for any other line."""
        if len(line) > LONGEST:
            return None
        line = _RULES.sub("|", line)
        mark = next(filter(line.count, "|,;\t"), "")
        cells = _cells(line, mark)
        names = {canonical(text)[0] for _, _, text in cells if _NAME.fullmatch(text)}
        if 1 < len(names) == len(cells):
            if {"step", "epoch"} & names and any(name.endswith("loss") for name in names):
                self._names, self._mark = cells, mark
            return None
        if mark != self._mark or not self._names or (mark and len(cells) != len(self._names)):
            return None
        found: Record = {}
        for at, (begin, end, text) in enumerate(cells):
            above = self._names[at : at + 1] if len(cells) == len(self._names) else self._names
            # A cell may be empty: names and numbers are aligned left or right.
            name = next((one[2] for one in above if mark or len(above) == 1 or begin == one[0] or end == one[1]), None)
            is_number = _CELL.fullmatch(text)
            if name is None or not (is_number or mark or text[0] in "+-0123456789"):
                return None
            if is_number:
                put(found, name, text.rstrip("%"))
        settle_loss(found)
        return found if {"step", "epoch"} & found.keys() and any(one.endswith("loss") for one in found) else None


def _cells(line: str, mark: str) -> List[Tuple[int, int, str]]:
    """Begin, end and text of the cells of a line."""
    if not mark:
        return [(*one.span(), one.group()) for one in re.finditer(r"\S+", line)]
    if '"' in line and mark != "|":
        try:
            return [(0, 0, text.strip()) for row in csv.reader([line], delimiter=mark) for text in row]
        except csv.Error:  # a NUL, or a line end within a value
            return []
    texts = line.strip().strip(mark).split(mark) if mark == "|" else line.split(mark)
    return [(0, 0, text.strip().strip("*`")) for text in texts]


_SHARE = re.compile(r"(?:^|: )\s{0,4}\d{1,3}%\s{0,12}$")


def _title(head: str) -> str:
    text, percent, _ = head.partition("%|")
    title = (text.rstrip("0123456789 ") if percent else _SHARE.sub("", text)).rstrip(": ")
    return title.replace("Epoch: ", "Epoch ")


# Iterations are parts of a step (litgpt): Epoch 1 | iter 100 step 25 | …, iter 40: val loss 6.00
_BOTH = re.compile(r"\biter(?:ation)?:? \d{1,12},? .{0,40}\bstep:? \d", re.IGNORECASE)
_LONE_ITERATION = re.compile(r"(?!.*\bstep:? \d).{0,200}\biter(?:ation)?:? \d", re.IGNORECASE)
# A counter without a name: [10/100] loss 0.5, 20/100 | loss: 0.4. It may count ranks, or be a date.
_BARE = re.compile(
    r"(?:^|[\s:])\[?\s{0,8}(\d{1,12})\s?/\s{0,8}(\d{1,12})\]?\s{0,4}[|,:-]?\s{0,4}(?:train(?:ing)?[_ ])?loss\b",
    re.IGNORECASE,
)
# OLMo and Composer print a step, and its values below it: [step=10/739328,epoch=0], [batch=10/4800]:, and with the
# batch of an epoch [epoch=1][batch=10/100]:
_ABOVE = re.compile(r"\[(?:step|batch)=(\d{1,12})(?:/(\d{1,12}))?(?:,[^\]]{0,80})?\]:?\s*$")
_EPOCH_ABOVE = re.compile(r"\[epoch=(\d{1,6})(?:/\d{1,6})?\]\[batch=")
# Coqui: --> STEP: 24/406 -- GLOBAL_STEP: 25, and others: Step 10:
_STEP_ABOVE = re.compile(
    r"(?:^|[\s\[-])(?:global[_ ])?(?:step|iteration)\s?[:=#]?\s?(\d{1,12})(?:\s?/\s?(\d{1,12}))?\]?:?\s*$",
    re.IGNORECASE,
)
# A line that marks the lines below it, which are indented further, as a validation; or the next line, if it names only
# this phase, perhaps after a logger's prefix: INFO - trainer - Validating
_VALIDATION_BELOW = re.compile(
    r"(\s{0,40})(?:[\W_]{0,40}|.{0,120}(?: - |[|\]:] ?|\b(?:INFO|DEBUG) )(?=validating|evaluating))"
    r"(?:(?:running|starting) )?"
    r"(?:(validation|validating|evaluation|evaluating)|eval|valid|testing|test)(?: results?| metrics)?\b[\W_]{0,40}$",
    re.IGNORECASE,
)
# Not the name of a file or a logger: [train.py:90] loss: 0.7
_OF_TRAINING = re.compile(r"(?<![a-z])train(?:ing)?[ _/:|\]-]{1,3}(?:\w{1,12} ){0,2}loss", re.IGNORECASE)
# A line that names only the epoch of those below, and how many there are: Epoch 3/10, INFO - trainer - Epoch 0/9
_EPOCH_ALONE = re.compile(
    r"(?!.{0,120}\b(?:best|load|sav|checkpoint|restor))(?:[^\w]{0,40}|.{0,120}(?: - |[|:\]] ))[-=*#> ]{0,40}"
    r"(?:(?:training|starting|start|begin) )?(epoch:?\s{0,4}\[?\s?\d{1,6}\s?(?:/|of)\s?\d{1,6}\]?)[-=*#<:. ]{0,40}$",
    re.IGNORECASE,
)
# The same as a rule: === Evaluation ===. Its results may follow at the same indentation.
_RULED = re.compile(r"\s{0,40}([-=*#])\1{2,60} ?[^\W_].{0,80}[^\W_] ?\1{2,60}\s*$")
_RESULTS_BELOW = 3
"""Lines from it on that may hold metrics, among which its loss is expected."""
_NEXT = 2
"""The same of a line that is not ruled: only the next one."""
# Colours and cursor moves; titles and links (OSC), whose addresses contain names and numbers.
_ESCAPES = re.compile(
    r"\x1b\[[0-9;:?]{0,40}[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>78]|\x1b\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)"
)


# A launcher's prefix of a rank's lines: [rank0]: by torch, [default0]: by torchrun, [1,0]<stdout>: by mpirun,
# (TaskRunner pid=9) by Ray, 12: by srun --label, [node1:0/2] by ESPnet.
_RANK = re.compile(
    r"^(?:\[(?:rank|default|\d{1,6},)\s?\d{1,6}\](?:<std(?:out|err)>)?:\s?"
    r"|\(\w{1,60} pid=\d{1,9}(?:, ip=[\w.:]{1,45})?\) |\s{0,4}\d{1,5}: "
    r"|\[(?![\w.-]{0,50}(?:step|iter|epoch|batch|train|val|test))[\w.-]{1,60}:\d{1,5}/\d{1,5}\] (?=\d{4}-))+",
    re.IGNORECASE,
)
# The lines of a multi-line JSON report, in which an object holds others.
_OPENS = re.compile(r"\s{0,40}(?:\"[^\"]{1,60}\"\s?:\s?)?\{\s*$")
_CLOSES = re.compile(r"\s{0,40}\},?\s*$")
_INSIDE = re.compile(r"\s{0,40}[\"\[\]]")


# The first cell of a table is a number.
_ROW_OF_TABLE = re.compile(
    rb"(?:\[(?:rank|default|\d{1,6},)\s?\d{1,6}\](?:<std(?:out|err)>)?:\s?)?(?:\xe2\x94[\x82\x83\x86]|[|\s*`\"]){0,40}\d{1,12}(?:\.\d{0,12})?[\s,;|\xe2*`\"]"
)


def may_tell(line: bytes) -> bool:
    """Whether a line may hold metrics: a cheap check before the expressions are applied."""
    lower = line.lower()
    if any(hint in lower for hint in HINTS) or line.rstrip()[-2:].strip(b" ,:") in (b"{", b"}"):
        return True
    if lower.rstrip(b" .:-=*#<\r\n").endswith((b"train", b"training")):  # the heading of a phase
        return True
    return bool(_ROW_OF_TABLE.match(line)) or line.lstrip()[:3] in (b"===", b"---", b"***", b"###")


def shows_bar(tail: bytes) -> bool:
    """Whether the newest, unfinished line holds a whole bar: tqdm begins its lines with \\r and does not end them.

    Rich's bars have no end mark that would show whether they are whole.
    """
    return may_tell(tail) and len(line := _text(tail)) <= LONGEST and _BAR.search(line) is not None


class Recogniser:
    """Recognises the common formats of training scripts.

    A counter that restarts with every epoch is continued, so that steps increase over the whole run.

    Args:
        from_0: Whether an earlier attempt has shown that the script counts its epochs from 0.
    """

    def __init__(self, *, from_0: bool = False) -> None:
        self._bars = Bars(from_0=from_0)
        self._table = _Table()
        self._from_0 = from_0
        self._epoch = 0.0
        self._step = 0
        self._total = 0
        self._earlier = 0
        self._logs_loss = False
        """Whether a loss was printed without a validation loss."""
        self._beside: Set[str] = set()
        """The names in the newest line of a training loss."""
        self._objects = 0
        """Open objects of a JSON report."""
        self._both = False
        """Whether a line had an iteration and a step: then a lone iteration is not a step."""
        self._validates: Optional[int] = None
        """The indentation of the line that began a validation, None outside of one."""
        self._results = 0
        """Lines after a validation's heading in which its loss may still follow without indentation."""
        self._above: Record = {}
        """The step of the values below it."""
        self._epoch_above = ""
        """The newest line of its own that names an epoch and how many there are."""
        self._length: Optional[Value] = None
        """The number of steps in the newest line of the training."""
        self._bare: Optional[Tuple[int, int, int]] = None
        """A counter without a name: its number, its total, and the steps of earlier epochs."""
        self._newest: Optional[Value] = None
        """The newest step."""
        self._lay_in_share = False
        """Whether the steps so far were taken for steps of the run."""
        self._restarts = False
        """Whether a step was outside of its epoch's part of the total, so that the counter is the epoch's."""

    def read(self, line: bytes, following: bytes = b"") -> Optional[Record]:
        """The metrics in one line; None or an empty record if it has none.

        Args:
            following: The known part of the next line: tqdm redraws its bar only now and then, but always after a line
                that is printed in its place, and then with that line's step.
        """
        text = _text(line)
        record = self._bars.recognise(text, validates=bool(self._results))
        if record is not None:
            self._results = 0 if "loss" in record else self._results
            return record
        record = None if self._is_reported(text) else self._table.recognise(text) or recognise(text)
        self._note_validation(text)
        if record is None:
            self._note_step(text)
            self._note_epoch(text)
        self._bars.confirm(record or {}, text)
        if record is None:
            return None
        record = self._below(record, text)
        self._both = self._both or bool(_BOTH.search(text))
        if self._both and "step" in record and _LONE_ITERATION.match(text):
            del record["step"]
            if self._newest is not None:
                record["step"] = self._newest
            return record
        if "loss" in record and "val_loss" not in record:
            self._logs_loss, self._beside = True, record.keys() - {"steps"}
        elif self._logs_loss and "loss" in record and not (len(self._beside) > 4 and self._beside <= record.keys()):
            # An evaluation's mean over other batches (nanoGPT: "step 250: train loss 2.41, val loss 2.50"), not a
            # training line that repeats the newest val_loss (NeMo).
            record["eval_train_loss"] = record.pop("loss")
        self._place(record, text, following)
        self._newest = record.get("step", self._newest)
        return record

    def _place(self, record: Record, text: str, following: bytes) -> None:
        """Complete the step and the epoch of a record."""
        if "loss" in record:
            self._length = record.get("steps", self._length)
        if "step" not in record and "epoch" not in record and "val_loss" not in record and self._bars.step is None:
            self._count_bare(record, text)
        if self._epoch_above and "epoch" not in record and self._bars.step is None:
            text = f"{self._epoch_above} {text}"
            put(record, "epoch", re.findall(r"\d+", self._epoch_above)[0])
        if "step" in record:
            self._count_on(record, text)
            step, newest = record["step"], self._newest
            if "loss" in record and isinstance(step, int) and isinstance(newest, int) and step > newest:
                self._bars.lines_count = True
            if "epoch" in self._above:
                record.pop("steps", None)  # of an epoch
        elif self._bars.step is not None:
            ahead = self._bars.step_at(_text(following))
            record["step"] = self._bars.step if ahead is None else ahead

    def _below(self, record: Record, text: str) -> Record:
        """A record completed by the line above it."""
        if not text[:1].isspace():
            self._above = {}
        counted = not record.keys().isdisjoint(("epoch", "lr", "grad_norm", "step_time")) or self._goes_on(record)
        below = self._results and not counted and not _OF_TRAINING.search(text)
        if below and "loss" in record:
            self._results = _NEXT if "step" in record and self._newest else 0  # it has one, or one of each batch
        if (self._validates is not None or below) and "loss" in record and "val_loss" not in record:
            rest = {name: value for name, value in record.items() if name not in ("step", "steps")}
            return as_validated(rest)  # its step counts the validation's own batches
        return record if "step" in record else {**record, **self._above}

    def _goes_on(self, record: Record) -> bool:
        """Whether the counter of a record is the training's: a validation's begins again or has another total."""
        step, newest = record.get("step"), self._newest or 1
        if "steps" in record:
            return record["steps"] == self._length
        return isinstance(step, int) and isinstance(newest, int) and step > newest

    def _note_validation(self, text: str) -> None:
        if not any(map(str.isalnum, text)):
            return  # a rule below a heading
        heading = _VALIDATION_BELOW.match(text)
        self._results = max(0, self._results - 1)
        if heading:
            self._validates = len(heading.group(1))
            self._results = _RESULTS_BELOW if _RULED.match(text) else _NEXT if heading.group(2) else 0
        elif _RULED.match(text):
            self._results = 0
        elif self._validates is not None and len(text) - len(text.lstrip()) <= self._validates:
            self._validates = None

    def _note_step(self, text: str) -> None:
        above = _ABOVE.search(text) or _STEP_ABOVE.search(text)
        if above is None:
            return
        self._above = {}
        put(self._above, "step", *above.groups())
        epoch = _EPOCH_ABOVE.search(text)
        if epoch:
            put(self._above, "epoch", epoch.group(1))

    def _note_epoch(self, text: str) -> None:
        heading = _EPOCH_ALONE.match(text) if len(text) < 200 else None
        if heading is None:
            return
        number = int(re.findall(r"\d+", heading.group(1))[0])
        self._from_0 = self._from_0 or not number
        # From 0, the total may be the number of the last epoch.
        self._epoch_above = f"epoch {number}" if self._from_0 else heading.group(1)

    def _count_bare(self, record: Record, text: str) -> None:
        """Use a counter without a name as the step, once it has been seen to increase."""
        counter = _BARE.search(text)
        if counter is None:
            return
        number, total = int(counter.group(1)), int(counter.group(2))
        if self._epoch_above and number <= total:
            record["step"], record["steps"] = number, total
            return
        before, self._bare = self._bare, (number, total, 0)
        if before is None or before[1] != total or number > total or number == before[0]:
            return
        earlier = before[2] + (total if number < before[0] else 0)
        self._bare = number, total, earlier
        record["step"] = earlier + number
        if not earlier:
            record["steps"] = total

    def _is_reported(self, text: str) -> bool:
        """Whether a line is inside an object of a report, whose numbers belong to another epoch (timm)."""
        if _OPENS.match(text):
            self._objects = self._objects + 1 if text[:1] != "{" else 1
        elif _CLOSES.match(text):
            self._objects = max(0, self._objects - 1)
        elif self._objects and not _INSIDE.match(text):
            self._objects = 0
        return self._objects > 1

    @property
    def bar_step(self) -> Optional[int]:
        """The step that the training's bar shows, None before the first bar."""
        return self._bars.step

    def _count_on(self, record: Record, text: str) -> None:
        step, total, epoch = record["step"], record.get("steps"), record.get("epoch")
        if not (isinstance(step, int) and isinstance(epoch, (int, float))):
            return
        if not isinstance(total, int):
            if isinstance(epoch, int) and not self._total:
                self._count_on_without_total(record, step, epoch)
            return
        named = _EPOCH.search(text)
        epochs = int(named.group(2) or 0) if named else 0
        first = first_epoch(text)
        first = 1 if epochs and first is None else first
        if first is not None and self._from_0:
            first = 0
        before = 0 if first is None else epoch - first
        # The step lies in this epoch's part of the total: it counts the run.
        # Within one step: an epoch's share of the total need not be a whole number.
        share = (before * total - epochs, (before + 1) * total + epochs)
        in_share = share[0] <= step * epochs <= share[1]
        self._restarts = self._restarts or bool(epochs and first is not None and not in_share)
        whole = epochs and before > 0 and not (self._earlier or self._restarts) and in_share
        goes_on = self._total == 0 and (0 if self._from_0 else 1) < epoch < 1e6
        if (goes_on or self._lay_in_share) and not whole and first is not None:
            # Continues from a checkpoint; a first epoch of 1 alone does not show that. Or the first steps of an epoch
            # happened to lie in its part of the total.
            self._earlier = int(before) * total
            self._lay_in_share = False
        elif epoch > self._epoch and (
            step < self._step or (step == self._step and step == total) or (first is not None and not whole)
        ):
            self._earlier += self._total
        self._epoch, self._step, self._total = float(epoch), step, total
        record["step"] = self._earlier + step
        if whole and not self._earlier:
            self._lay_in_share = True
            return
        if epochs:
            record["steps"] = total * epochs
        elif self._earlier or first is not None:
            del record["steps"]

    def _count_on_without_total(self, record: Record, step: int, epoch: int) -> None:
        """Continue a counter that restarts with an epoch from the greatest step seen: the run has made more."""
        trains = not record.keys().isdisjoint(("loss", "samples_per_s", "tokens_per_s", "steps_per_s"))
        if trains and "val_loss" not in record:
            if epoch > self._epoch and step <= self._step:
                self._earlier += self._step
            self._epoch, self._step = epoch, step
        if epoch == self._epoch:
            record["step"] = self._earlier + step


def _text(line: bytes) -> str:
    return _RANK.sub("", _ESCAPES.sub("", line.decode("utf-8", "replace")))
