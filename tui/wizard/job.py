"""Step 4: the job."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.suggester import Suggester
from textual.widgets import Input, Static

from disttui.runner.errors import DisttuiError
from disttui.runner.text import clean, is_clean
from disttui.tui.keys import MOVE, OPEN, bind
from disttui.tui.widgets.choices import Cycle
from disttui.tui.widgets.points import Point
from disttui.tui.wizard.draft import FOR_THE_JOB, JOB_KINDS, SETTINGS, Draft, WizardState, chosen, with_choice
from disttui.tui.wizard.step import Step, StepNotes

_KINDS = {"built-in": "builtin", "script": "script", "module": "module", "command": "command"}
_FIRST: Mapping[str, Any] = {"builtin": "bytegpt", "script": "", "module": "", "command": []}
_PATIENCE = 5.0
_FIELDS: Mapping[str, tuple[str, str, str]] = {
    "name": ("name", "", "Beginning of run ids: a-z 0-9 . _ -"),
    "script": ("script", "e.g. train.py", "A file on the hosts, relative to the folder below; → accepts a completion."),
    "module": ("module", "e.g. package.train", "As for python -m."),
    "command": ("command", "e.g. ./train.sh fast", "As in a shell; the environment has rank and world size."),
    "args": ("arguments", "e.g. --steps 300", "Words as in a shell; the job gets them as written."),
    "workdir": (
        "folder", "when empty: ~",
        "Folder on every host: an absolute path, or one that starts with ~/.",
    ),
    "env": ("environment", "e.g. NCCL_DEBUG=WARN", "NAME=value …; ${env:NAME}: from your shell, not stored."),
    "python": ("Python", "when empty: auto", "The interpreter on the hosts; auto: the first with torch."),
    "activate": ("activate", "e.g. conda activate torch", "A shell line to run first on every host."),
    "restarts": ("restarts", "when empty: 0", "Attempts after a failure; built-in: each from the last checkpoint."),
}  # fmt: skip
_CYCLES: Mapping[str, tuple[str, Sequence[str], str]] = {
    "kind": ("runs", tuple(_KINDS), "built-in is bytegpt, a small GPT trained on Python's source code."),
    **{key: (key, SETTINGS[key].words, SETTINGS[key].meaning) for key in FOR_THE_JOB},
}  # fmt: skip
_ORDER = (
    "kind", "script", "module", "command", "args", "workdir", "env", "python", "activate", "strategy", "precision",
    "restarts", "name",
)  # fmt: skip


class RemotePaths(Suggester):
    """Completes a path on the first host that has answered."""

    def __init__(self, ask: Callable[[str], Mapping[str, Any]], offer: Callable[[Sequence[str], bool], None]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._ask = ask
        self._offer = offer

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first completion, and pass all of them to `offer`."""
        try:
            answer = await asyncio.to_thread(self._ask, value)
        except DisttuiError:
            return None
        names = [str(name) for name in answer.get("names", ())][:100]
        # A name with invisible characters cannot be typed.
        safe = [name for name in names if is_clean(name)]
        self._offer(safe, bool(answer.get("more")))
        return safe[0] if safe else None


class Field(Input):
    """An input of the form."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("field.down", "down", "app.focus_next", "next line", "next line", group=MOVE),
        bind("field.up", "up", "app.focus_previous", "previous", "previous line", group=MOVE, show=False),
        bind("field.go", "enter", "submit", "next", "next step", group=OPEN),
    ]


class Choice(Cycle):
    """A choice of the form."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("choice.down", "down,j", "app.focus_next", "next line", "next line", group=MOVE),
        bind("choice.up", "up,k", "app.focus_previous", "previous", "previous line", group=MOVE, show=False),
    ]


class JobStep(Step):
    """The form of the job: built-in or the user's own, with its arguments and environment."""

    PLACE = "the form"
    TITLE = "Job"
    DEFAULT_CSS = """
    JobStep VerticalScroll { padding: 0 1; scrollbar-size: 1 1; }
    JobStep .line { height: 1; color: $muted; }
    JobStep .line:focus-within { color: $accent; }
    JobStep .line > Static { width: 13; }
    JobStep .line.-off { display: none; }
    JobStep Field { width: 1fr; }
    JobStep StepNotes { height: 5; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._offered: tuple[Sequence[str], bool] = ((), False)
        self._flaw: dict[str, str] = {}
        self._jobs: dict[str, tuple[Any, Sequence[str]]] = {}
        """Kind → its value and arguments from before another kind was chosen, to restore them."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False, classes="main"):
            for key in _ORDER:
                with Horizontal(classes="line", id=f"line-{key}"):
                    if key in _CYCLES:
                        yield Static(_CYCLES[key][0])
                        yield Choice(_CYCLES[key][1], id=f"choice-{key}")
                    else:
                        yield Static(_FIELDS[key][0])
                        paths = RemotePaths(self._complete, self._offer) if key == "script" else None
                        yield Field(
                            placeholder=_FIELDS[key][1], id=f"field-{key}", suggester=paths, select_on_focus=False
                        )
        yield StepNotes()

    def show(self, view: WizardState) -> None:
        """Fill in the values of the draft, except in the input that has the focus."""
        super().show(view)
        job = view.draft.data.get("job", {})
        kind = next(shown for shown, key in _KINDS.items() if key in job)
        sync = job.get("sync")
        sent = str(sync.get("from", ".") if isinstance(sync, Mapping) else sync or "")
        for key in _ORDER:
            off = key in ("script", "module", "command") and key != _KINDS[kind]
            off |= key == "args" and kind == "command"
            off |= key in FOR_THE_JOB and not view.draft.divides_job
            self.query_one(f"#line-{key}").set_class(off, "-off")
            if off:
                self._flaw.pop(key, None)
            if key in _CYCLES:
                self.query_one(f"#choice-{key}", Choice).show(kind if key == "kind" else chosen(view.draft, key))
            else:
                field = self.query_one(f"#field-{key}", Field)
                if key == "workdir":
                    field.placeholder = f"when empty: a copy of {clean(sent)}" if sent else _FIELDS[key][1]
                if not field.has_focus and key not in self._flaw:
                    with self.prevent(Input.Changed):
                        field.value = _written(view.draft, key)
        self._show_notes()

    def enter(self) -> None:
        self.query_one("#choice-kind").focus()

    def leave(self) -> str:
        return "; ".join([*self._flaw.values(), *self.draft.problems])

    @on(Cycle.Changed)
    def _chosen(self, event: Cycle.Changed) -> None:
        key = str(event.cycle.id).removeprefix("choice-")
        if key == "kind":
            job = self.draft.data.get("job", {})
            before = next(kind for kind in JOB_KINDS if kind in job)
            self._jobs[before] = job[before], job.get("args", ())
            kind = _KINDS[event.value]
            self._change(self.draft.with_job(kind, *self._jobs.get(kind, (_FIRST[kind], ()))))
        else:
            self._change(with_choice(self.draft, key, event.value))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        key = str(event.input.id).removeprefix("field-")
        if key not in _FIELDS or not event.input.has_focus:
            return
        self._flaw.pop(key, None)
        try:
            self._change(_put(self.draft, key, event.value))
        except ValueError as error:
            self._flaw[key] = f"{_FIELDS[key][0]}: {error}"
            self._show_notes()

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.post_message(self.GoOn())

    def on_click(self, event: events.Click) -> None:
        label, _ = self.screen.get_widget_at(*event.screen_offset)
        line = label.parent
        if isinstance(line, Horizontal) and line.has_class("line"):
            line.query_one("Field, Choice").focus()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._show_notes()

    def _change(self, draft: Draft) -> None:
        self.post_message(self.Changed(draft))

    def _show_notes(self) -> None:
        focused = self.screen.focused
        if isinstance(focused, StepNotes):
            return
        key = str(focused.id).partition("-")[2] if focused is not None and focused.id else ""
        label, _, words = _CYCLES.get(key) or _FIELDS.get(key) or ("", "", "")
        lines: list[Point | str] = [words] if words else []
        names, more = self._offered
        if key == "script" and names:
            lines.append(Point("  ".join(names[:30]) + (" …" if more or len(names) > 30 else ""), "$foreground"))
        job = self.draft.data.get("job", {})
        if key == "script" and isinstance(job.get("sync"), str):
            lines.append(f"{clean(job['sync'])} is sent to the hosts (job.sync).")
        # A line that has just appeared is empty; this is reported only when the user leaves the step.
        begun = all(job[kind] for kind in JOB_KINDS if kind in job)
        flaws = [*self._flaw.values(), *(self.draft.problems if begun else ())]
        self.query_one(StepNotes).tell(label, *(Point(flaw, "$state-failed", "✗ ") for flaw in flaws[:2]), *lines)

    def _offer(self, names: Sequence[str], more: bool) -> None:
        self._offered = (names, more)
        self._show_notes()

    def _complete(self, path: str) -> Mapping[str, Any]:
        """Ask the first host that has answered for completions; called in a thread. Raises DisttuiError."""
        link = next((state.link for state in self.view.of_hosts() if state.link and state.facts), None)
        if link is None:
            return {}
        workdir = str(self.draft.data.get("job", {}).get("workdir", "~"))
        answer = link.request("complete", path=path, workdir=workdir, timeout=_PATIENCE)
        return answer if isinstance(answer, dict) else {}


def _words(text: str) -> list[str]:
    """Split text into words as a shell does. Raises ValueError if quotes are missing."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(str(error).lower()) from None


def _put(draft: Draft, key: str, text: str) -> Draft:
    """The draft with a typed value. Raises ValueError if it is malformed."""
    stripped = text.strip()
    if key == "name":
        return replace(draft, named=bool(stripped)).put(("name",), stripped or None)
    if key in ("script", "module"):
        return draft.with_job(key, stripped)
    if key == "command":
        return draft.with_job(key, _words(text))
    if key == "args":
        return draft.put(("job", "args"), _words(text))
    if key == "env":
        given = [word.partition("=") for word in _words(text)]
        if flaw := next((name for name, equals, _ in given if not equals), None):
            raise ValueError(f"{flaw}: expected NAME=value")
        return draft.put(("job", "env"), {name: value for name, _, value in given})
    if key == "restarts":
        return draft.put(("launch", "restarts"), int(stripped) if stripped.isdecimal() else stripped or None)
    if key == "workdir" and stripped and draft.data.get("job", {}).get("sync") == draft.sent:
        draft = draft.put(("job", "sync"), None)
    path = ("job", "workdir") if key == "workdir" else (key,)
    return draft.put(path, None if stripped == "auto" else stripped)


def _written(draft: Draft, key: str) -> str:
    """A value of the draft, as a user would type it."""
    job, data = draft.data.get("job", {}), draft.data
    if key in ("args", "command"):
        return " ".join(_quote(str(word)) for word in job.get(key, ()))
    if key == "env":
        return " ".join(f"{name}={_quote(str(value))}" for name, value in (job.get("env") or {}).items())
    if key == "restarts":
        return str((data.get("launch") or {}).get("restarts", ""))
    return str(job.get(key, "") if key in ("script", "module", "workdir") else data.get(key, ""))


def _quote(word: str) -> str:
    return word if word.startswith("${env:") and word.endswith("}") and " " not in word else shlex.quote(word)
