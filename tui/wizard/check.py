"""Step 5: findings, the file, the commands; save and launch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from runner.api.preparing import Planned, ahead
from runner.planning.by_hand import shell_command
from runner.planning.plan import counts_line
from runner.profile.disclosure import effect_lines
from runner.profile.edit import diff
from runner.protocol.lease_words import holder
from runner.protocol.leases import Lease
from runner.render.plan import batch_script
from runner.text import clean
from tui.keys import VIEW, bind
from tui.theme import look
from tui.widgets.points import Pages, Point
from tui.widgets.tabs import Tabs
from tui.wizard.draft import WizardState
from tui.wizard.step import Step, count

PANES = ("checks", "profile", "commands")
_LEVELS = {"error": "error", "warning": "warning", "info": "ended"}
_YAML = re.compile(r"(\s*(?:- )?)([\w.]+)(:)(.*)")
_DIFF = {"+": "$state-done", "-": "$state-failed", "@": "$muted"}


class Pane(Pages):
    """A pane with one of the three texts."""

    PLACE = "the panes"

    def __init__(self, name: str) -> None:
        super().__init__(f"pane-{name}")
        self.label = f"[{PANES.index(name) + 1}] {name}"
        self.border_title = Content(f" {self.label} ")

    def tell(self, points: Iterable[Point], title: str = "") -> None:
        """Replace the points; their texts must be clean."""
        self.show(points)
        if title:
            self.label = clean(title)
            self.border_title = Content(f" {self.label} ")


class CheckStep(Step):
    """The end of the wizard: findings, the file as it will be saved, and the exact command of every host."""

    TITLE = "Check & save"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("check.pane", "tab", "pane(1)", "next pane", "to the next pane", group=VIEW),
        bind("check.pane_before", "shift+tab", "pane(-1)", "pane before", group=VIEW, show=False),
        bind("check.checks", "1", "to('checks')", "checks", "what was checked", group=VIEW, show=False),
        bind("check.profile", "2", "to('profile')", "profile", "the file", group=VIEW, show=False),
        bind("check.commands", "3", "to('commands')", "commands", "what every host runs", group=VIEW, show=False),
        bind("check.diff", "d", "diff", "diff", "the whole file, or what changes in it", group=VIEW, show=False),
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
        """The action in progress, in words; empty for none."""
        self.too_soon = False
        """Whether the key that starts the run was pressed before the checks could be read."""

    def compose(self) -> ComposeResult:
        """Yield tabs, panes and verdict."""
        yield Tabs()
        with Container(id="check-panes"):
            yield Pane("checks")
            yield Pane("commands")
            yield Pane("profile")
        yield Static(id="verdict")

    def show(self, view: WizardState) -> None:
        """Show the findings, file and commands of the draft."""
        super().show(view)
        weighed = view.weighed
        self._pane("checks").tell(_findings(view))
        changes = diff(view.draft.old, view.draft.text, clean(view.draft.path.name)) if view.draft.path else []
        if changes and not self._whole:
            self._pane("profile").tell(_diff(changes), "[2] profile: what changes, d: all of it")
        else:
            name = clean(view.draft.path.name) if view.draft.path else "not saved yet"
            self._pane("profile").tell(_yaml(view.draft.text), f"[2] profile: {name}")
        self._pane("commands").tell(_commands(weighed) if weighed else [Point("not decided yet", "$muted")])
        self.query_one("#verdict", Static).update(self._verdict(view))
        self._mark()

    def enter(self) -> None:
        """Focus the findings."""
        self.action_to("checks")

    def on_descendant_focus(self) -> None:
        """Show the focused pane where there is room for one only."""
        if isinstance(self.screen.focused, Pane):
            for pane in self.query(Pane):
                pane.set_class(pane is self.screen.focused, "-current")
            self._mark()

    @on(Tabs.Chosen)
    def _chosen(self, event: Tabs.Chosen) -> None:
        self.action_to(event.name)

    def action_to(self, name: str) -> None:
        """Show a pane."""
        for pane in self.query(Pane):
            pane.set_class(pane.id == f"pane-{name}", "-current")
        self._pane(name).focus()

    def action_pane(self, by: int) -> None:
        """Show the next pane."""
        at = next((at for at, name in enumerate(PANES) if self._pane(name).has_class("-current")), 0)
        self.action_to(PANES[(at + by) % len(PANES)])

    def action_diff(self) -> None:
        """Switch between the whole file and its changes."""
        self._whole = not self._whole
        if self.view:
            self.show(self.view)

    def action_copy(self) -> None:
        """Copy the text of the pane."""
        pane = next((pane for pane in self.query(Pane) if pane.has_focus), self._pane("commands"))
        self.app.copy_to_clipboard(pane.plain)

    def _pane(self, name: str) -> Pane:
        return self.query_one(f"#pane-{name}", Pane)

    def _mark(self) -> None:
        panes = [(name, self._pane(name)) for name in PANES]
        self.query_one(Tabs).show([(name, pane.label, pane.has_class("-current")) for name, pane in panes])

    def _verdict(self, view: WizardState) -> Content:
        weighed = view.weighed
        if self.busy:
            return Content.styled(f"◌ {clean(self.busy)}", "$state-waiting")
        if view.draft.problems:
            return Content.styled(f"✗ {view.draft.problems[0]}", "$state-failed")
        if any(state.pending for state in view.of_hosts()) or weighed is None:
            return Content.styled("◌ asking the hosts", "$state-waiting")
        if weighed.errors:
            errors = count(len(weighed.errors), "error")
            wait = "; w waits for what others have leased" if view.may_wait else ""
            return Content.assemble((f"✗ {errors}: nothing would be started", "bold $state-failed"), (wait, "$muted"))
        key = "enter once more" if self.too_soon else "enter"
        place = "host" if weighed.plan.batch is None else "node"
        what = f"{count(weighed.plan.world_size, 'process')} on {count(len(weighed.plan.hosts), place)}"
        words = f"✓ {key} {'queues' if view.queued else 'starts'} {what}"
        kept = "; it goes on without disttui"
        if view.draft.sandbox:
            kept = "; it ends when disttui ends"
        elif view.queued:
            kept = "; it waits and starts without disttui"
        return Content.assemble((words, "bold $state-done"), (kept, "$muted"))


def _findings(view: WizardState) -> Iterator[Point]:
    weighed = view.weighed
    if weighed is None:
        yield from (Point(problem, "$state-failed", "✗ ") for problem in view.draft.problems)
        for state in view.of_hosts():
            if state.error:
                yield Point(clean(state.error.sentence), "$state-failed", "✗ ")
                yield Point(clean(state.error.cure), "$muted", "  → ")
            elif state.pending:
                yield Point(f"{clean(state.name)} {state.state}", "$state-waiting", "◌ ")
        return
    waits = ahead(weighed) if view.queued else ()
    if view.queued:
        yield from _waits(waits)
    for finding in weighed.findings:
        seen = look(_LEVELS[finding.level])
        where = f"{clean(finding.host)}: " if finding.host else ""
        mark = "·" if finding.level == "info" else seen.glyph
        yield Point(f"{where}{clean(finding.what)}", mark=f"{mark} ", mark_style=seen.style)
        if finding.cure:
            yield Point(clean(finding.cure), "$muted", "  → ")
    for advice in weighed.recommendation.warnings:
        where = f"{clean(advice.host)}: " if advice.host else ""
        yield Point(f"{where}{clean(advice.text)}", mark="▲ ", mark_style="$state-slow")
    if not weighed.findings:
        words = "interpreters, torch, GPUs, folders, disk, ports, network, clocks"
        yield Point(words, mark="✓ ", mark_style="$state-done")
    yield Point("")
    if waits:
        yield Point("When these have ended:", "$muted")
    yield Point(clean(counts_line(weighed.plan)), "$muted")
    layout = weighed.plan.layout
    divided = layout is not None and layout.dp_replicate < layout.world_size  # else the strategy says it all
    for key in ("backend", "strategy", *(["layout"] if divided else []), "precision", "master"):
        yield Point(clean(weighed.recommendation.reasons[key]), mark=f"{key:<11}", mark_style="$muted")
    for key, text in effect_lines(weighed.profile, job=False):
        yield Point(text, mark=f"{key:<10} ", mark_style="$muted")


def _waits(waits: Sequence[tuple[str, float, Lease]]) -> Iterator[Point]:
    for host, now, lease in waits:
        yield Point(clean(f"{host}: {holder(lease, now)}"), mark="◌ ", mark_style="$state-waiting")
    if waits:
        words = "Ask them, or let it wait: it starts when these have ended, and those in line before it."
        yield Point(words, "$muted", "  → ")
    else:
        yield Point("nobody has leased what it uses: it starts at once", mark="✓ ", mark_style="$state-done")


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
    return (Point(clean(line[1:]), _DIFF.get(line[:1], ""), line[:1]) for line in lines[2:])


def _commands(weighed: Planned) -> Iterator[Point]:
    if weighed.plan.batch is not None:
        yield Point("This is submitted as a job of Slurm, with RUN for the run's id.", "$muted")
        yield Point("")
        yield from (Point(clean(line), hang=4) for line in batch_script(weighed.plan, weighed.plan.batch).splitlines())
        return
    yield Point("Typed by hand on each host, these do the same.", "$muted")
    for host in weighed.plan.hosts:
        last = host.first_rank + host.num_processes - 1
        ranks = f"rank {last}" if last == host.first_rank else f"ranks {host.first_rank} to {last}"
        yield Point("")
        yield Point(Content.assemble((clean(host.name), "bold $accent"), (f"  {ranks}", "$muted")))
        yield Point(shell_command(weighed.plan, host), hang=4)
