"""Step 5: the findings, the profile and the commands; save and launch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from disttui.runner.api.carrying import RunCode
from disttui.runner.api.preparing import Planned, ahead
from disttui.runner.errors import DisttuiError
from disttui.runner.formatting import amount, each_once
from disttui.runner.planning.by_hand import shell_command
from disttui.runner.planning.plan import counts_line
from disttui.runner.profile.effects import effect_lines
from disttui.runner.profile.save import diff
from disttui.runner.profile.schema import Profile
from disttui.runner.protocol.leases import Lease, holder
from disttui.runner.render.plan import batch_script
from disttui.runner.text import clean
from disttui.tui.keys import VIEW, bind
from disttui.tui.theme import look
from disttui.tui.widgets.choices import Tabs
from disttui.tui.widgets.points import Pages, Point
from disttui.tui.wizard.draft import WizardState
from disttui.tui.wizard.step import Step

if TYPE_CHECKING:
    from disttui.tui.shell import Shell

PANES = ("checks", "profile", "commands")
_LEVELS = {"error": "error", "warning": "warning", "info": "ended"}
_YAML = re.compile(r"(\s*(?:- )?)([\w.]+)(:)(.*)")
_DIFF = {"+": "$state-done", "-": "$state-failed", "@": "$muted"}


class Pane(Pages):
    """A pane of the step: checks, profile or commands."""

    PLACE = "the panes"

    def __init__(self, name: str) -> None:
        super().__init__(f"pane-{name}")
        self.label = f"[{PANES.index(name) + 1}] {name}"
        self.border_title = Content(f" {self.label} ")

    def tell(self, points: Iterable[Point], title: str = "") -> None:
        """Replace the points, and the title if one is given."""
        self.show(points)
        if title:
            self.label = clean(title)
            self.border_title = Content(f" {self.label} ")


class CheckStep(Step):
    """The last step: the findings, the file as it will be saved, and the exact command of every host."""

    TITLE = "Check & save"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("check.pane", "tab", "pane(1)", "next pane", group=VIEW),
        bind("check.pane_before", "shift+tab", "pane(-1)", "previous pane", group=VIEW, show=False),
        bind("check.checks", "1", "to('checks')", "checks", "what was checked", group=VIEW, show=False),
        bind("check.profile", "2", "to('profile')", "profile", "the file", group=VIEW, show=False),
        bind("check.commands", "3", "to('commands')", "commands", "each host's commands", group=VIEW, show=False),
        bind("check.diff", "d", "diff", "diff", "show the file, or its changes", group=VIEW, show=False),
        bind("check.copy", "y,c", "copy", "copy", "copy this pane's text", group=VIEW, show=False),
    ]
    DEFAULT_CSS = """
    CheckStep #check-panes { height: 1fr; }
    CheckStep #verdict { height: auto; max-height: 2; padding: 0 1; background: $surface; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._whole = False
        self.busy = ""
        """The action in progress, as text; empty if none."""
        self.measured: tuple[Profile, Sequence[str]] | None = None
        """The measured profile, and the results as lines of text."""

    def compose(self) -> ComposeResult:
        """Yield the tabs, the panes and the verdict."""
        yield Tabs()
        with Container(id="check-panes"):
            yield Pane("checks")
            yield Pane("commands")
            yield Pane("profile")
        yield Static(id="verdict")

    def show(self, view: WizardState) -> None:
        """Show the findings, the file and the commands of the draft."""
        super().show(view)
        planned = view.planned
        lines = self.measured[1] if self.measured and planned and planned.profile == self.measured[0] else ()
        points = [*map(Point, lines)]
        self._pane("checks").tell([*points, *([Point("")] if points else []), *_findings(view)])
        changes = diff(view.draft.old, view.draft.text, clean(view.draft.path.name)) if view.draft.path else []
        if changes and not self._whole:
            self._pane("profile").tell(_diff(changes), "[2] profile: changes, d: whole file")
        else:
            name = clean(view.draft.path.name) if view.draft.path else "not saved yet"
            self._pane("profile").tell(_yaml(view.draft.text), f"[2] profile: {name}")
        self._pane("commands").tell(
            _commands(planned) if planned else [Point("shown when all hosts have answered", "$muted")]
        )
        self.query_one("#verdict", Static).update(self._verdict(view))
        self._mark()

    def enter(self) -> None:
        self.action_to("checks")

    def on_descendant_focus(self) -> None:
        """Show only the focused pane if the others do not fit."""
        if isinstance(self.screen.focused, Pane):
            for pane in self.query(Pane):
                pane.set_class(pane is self.screen.focused, "-current")
            self._mark()

    @on(Tabs.Chosen)
    def _chosen(self, event: Tabs.Chosen) -> None:
        self.action_to(event.name)

    def action_to(self, name: str) -> None:
        for pane in self.query(Pane):
            pane.set_class(pane.id == f"pane-{name}", "-current")
        self._pane(name).focus()

    def action_pane(self, by: int) -> None:
        at = next((at for at, name in enumerate(PANES) if self._pane(name).has_class("-current")), 0)
        self.action_to(PANES[(at + by) % len(PANES)])

    def action_diff(self) -> None:
        self._whole = not self._whole
        self.show(self.view)

    def action_copy(self) -> None:
        pane = next((pane for pane in self.query(Pane) if pane.has_focus), self._pane("commands"))
        self.app.copy_to_clipboard(pane.plain)

    def _pane(self, name: str) -> Pane:
        return self.query_one(f"#pane-{name}", Pane)

    def _mark(self) -> None:
        panes = [(name, self._pane(name)) for name in PANES]
        self.query_one(Tabs).show([(name, pane.label, pane.has_class("-current")) for name, pane in panes])

    def _verdict(self, view: WizardState) -> Content:
        planned = view.planned
        if self.busy:
            return Content.styled(f"◌ {clean(self.busy)}", "$state-waiting")
        if view.draft.problems:
            return Content.styled(f"✗ {view.draft.problems[0]}", "$state-failed")
        pending = any(state.pending for state in view.of_hosts())
        if not pending and (failed := sum(state.error is not None for state in view.of_hosts())):
            return Content.assemble(
                (f"✗ {amount(failed, 'host')} cannot be used", "bold $state-failed"), ("; r checks again", "$muted")
            )
        if pending or planned is None:
            return Content.styled("◌ querying the hosts", "$state-waiting")
        if planned.errors:
            errors = amount(len(planned.errors), "error")
            wait = "; w queues it until leased GPUs are free" if view.may_wait else ""
            return Content.assemble((f"✗ {errors}: cannot start", "bold $state-failed"), (wait, "$muted"))
        if view.unsent:
            return Content.styled("✗ the code cannot be sent: cannot start", "bold $state-failed")
        if cast("Shell", self.app).read_only:
            return Content.styled(f"✓ ready: {size_words(planned)}; read-only, so it cannot be started here", "$muted")
        words = f"✓ enter {'queues' if view.queued else 'starts'} {size_words(planned)}"
        kept = "; it keeps running after you quit"
        if view.draft.sandbox:
            kept = "; it ends when you quit disttui"
        elif view.queued:
            kept = "; it starts even after you quit"
        return Content.assemble((words, "bold $state-done"), (kept, "$muted"))


def size_words(planned: Planned) -> str:
    """The size of a run as text: `4 processes on 2 hosts`."""
    place = "host" if planned.plan.batch is None else "node"
    return f"{amount(planned.plan.world_size, 'process')} on {amount(len(planned.plan.hosts), place)}"


def _findings(view: WizardState) -> Iterator[Point]:
    planned = view.planned
    if planned is None:
        yield from (Point(problem, "$state-failed", "✗ ") for problem in view.draft.problems)
        for state in view.of_hosts():
            if state.error:
                yield Point(state.error.sentence, "$state-failed", "✗ ")
                yield Point(state.error.cure, "$muted", "  → ")
            elif state.pending:
                yield Point(f"{clean(state.name)} {state.state}", "$state-waiting", "◌ ")
        return
    waits = ahead(planned) if view.queued else ()
    if view.queued:
        yield from _waits(waits)
    for hosts, (level, what, cure) in each_once(
        (one.host, (one.level, one.what, one.cure)) for one in planned.findings
    ):
        seen = look(_LEVELS[level])
        mark = "·" if level == "info" else seen.glyph
        yield Point(clean(f"{hosts}: {what}" if hosts else what), mark=f"{mark} ", mark_style=seen.style)
        if cure:
            yield Point(cure, "$muted", "  → ")
    for hosts, text in each_once((one.host, one.text) for one in planned.recommendation.warnings):
        yield Point(clean(f"{hosts}: {text}" if hosts else text), mark="▲ ", mark_style="$state-slow")
    if not planned.findings:
        words = "interpreters, torch, GPUs, folders, disk, ports, network, clocks"
        yield Point(words, mark="✓ ", mark_style="$state-done")
    yield from _sent(view.code)
    yield Point("")
    if waits:
        yield Point("When these have ended:", "$muted")
    yield Point(counts_line(planned.plan), "$muted")
    layout = planned.plan.layout
    divided = layout is not None and layout.dp_replicate < layout.world_size  # otherwise the strategy says it all
    for key in ("backend", "strategy", *(["layout"] if divided else []), "precision", "master"):
        yield Point(planned.recommendation.reasons[key], mark=f"{key:<11}", mark_style="$muted")
    for key, text in effect_lines(planned.profile, job=False):
        yield Point(text, mark=f"{key:<10} ", mark_style="$muted")
    yield from _left_out(view.code)


def _sent(code: RunCode | DisttuiError | None) -> Iterator[Point]:
    if isinstance(code, DisttuiError):
        yield Point(code.sentence, "$state-failed", "✗ ")
        yield Point(code.cure, "$muted", "  → ")
    elif code is not None:
        more = "; reasons below" if code.lines()[1:] else ""
        mark, style = ("▲ ", "$state-slow") if more or not code.files else ("· ", "$muted")
        yield Point(code_words(code) + more, mark=mark, mark_style=style)


def _left_out(code: RunCode | DisttuiError | None) -> Iterator[Point]:
    if isinstance(code, RunCode):
        for at, line in enumerate(code.lines()[1:]):
            yield from [Point(line)] if at else [Point(""), Point(line)]


def code_words(code: RunCode) -> str:
    """The code that is sent, and the parts of the folder that are not, in one line."""
    words = code.lines()[0]
    left_out = [one.path for one in sorted(code.omitted, key=lambda one: not one.secret)]
    for what, some in (("not sent", left_out), ("only pointers of Git LFS", code.pointers)):
        if some:
            words += f"; {what}: {some[0]}" + (f" and {len(some) - 1:,} more" if some[1:] else "")
    return words


def _waits(waits: Sequence[tuple[str, float, Lease]]) -> Iterator[Point]:
    for host, now, lease in waits:
        yield Point(f"{host}: {holder(lease, now)}", mark="◌ ", mark_style="$state-waiting")
    if waits:
        words = "Ask their owners, or let this run wait for them and for runs queued before it."
        yield Point(words, "$muted", "  → ")
    else:
        yield Point("nothing that it uses is leased: it starts immediately", mark="✓ ", mark_style="$state-done")


def _yaml(text: str) -> Iterator[Point]:
    for each in text.splitlines():
        line = clean(each)
        if line.lstrip().startswith("#"):
            yield Point(line, "$muted")
        elif match := _YAML.fullmatch(line):
            value, hash_, comment = match[4].partition(" #")
            parts = (match[2], "$accent"), f":{value}", (f"{hash_}{comment}", "$muted")
            yield Point(Content.assemble(*parts), mark=match[1])
        else:
            yield Point(line)


def _diff(lines: Sequence[str]) -> Iterator[Point]:
    return (Point(line[1:], _DIFF.get(line[:1], ""), line[:1]) for line in lines[2:])


def _commands(planned: Planned) -> Iterator[Point]:
    if planned.plan.batch is not None:
        yield Point("Submitted as a Slurm job; RUN is the run's id.", "$muted")
        yield Point("")
        yield from (Point(line, hang=4) for line in batch_script(planned.plan, planned.plan.batch).splitlines())
        return
    yield Point("To do the same by hand, run these on each host.", "$muted")
    for host in planned.plan.hosts:
        last = host.first_rank + host.num_processes - 1
        ranks = f"rank {last}" if last == host.first_rank else f"ranks {host.first_rank} to {last}"
        yield Point("")
        yield Point(Content.assemble((clean(host.name), "bold $accent"), (f"  {ranks}", "$muted")))
        yield Point(shell_command(planned.plan, host), hang=4)
