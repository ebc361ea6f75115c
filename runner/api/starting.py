"""Starts a run: the one sequence behind `disttui run`, sweeps, the wizard and scripts."""

from __future__ import annotations

import platform
import re
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from disttui.runner import __version__, private
from disttui.runner.api.carrying import HostStep, RunCode, carry, collect_code, keep_code, stepwise
from disttui.runner.api.preparing import Planned, Prepared, built, notify_targets, prepare, refuse, resolve_secrets
from disttui.runner.api.staging import stage
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import Surveyed
from disttui.runner.ids import new_run_id
from disttui.runner.planning.interpreter import find_python
from disttui.runner.profile import Profile
from disttui.runner.profile.consent import source_of
from disttui.runner.profile.leaks import hidden
from disttui.runner.protocol.requests import CodeState
from disttui.runner.runs.launch import Reachable, launch, submit
from disttui.runner.runs.provenance import CodeKept, HostVersions, Provenance
from disttui.runner.runs.registry import KnownRun, keep, run_names

if TYPE_CHECKING:
    from disttui.runner.hosts.facts import HostFacts
    from disttui.runner.hosts.link import Link
    from disttui.runner.planning.plan import Plan


class Launched(NamedTuple):
    """A run that has been started on all its hosts."""

    run: KnownRun
    links: tuple[Link, ...]
    """The open links to its hosts, for `follow`."""


def start(  # noqa: PLR0913
    viewer: Viewer,
    profile: Profile | Prepared,
    *,
    source: str | None = None,
    resume_from: str | None = None,
    ssh_config: str | None = None,
    command: Sequence[str] = (),
    run: str | None = None,
    ignore_leases: bool = False,
    queued: bool = False,
    code: RunCode | None = None,
) -> Generator[HostStep | RunCode | Planned | Launched]:
    """Start a profile on all its hosts.

    Yields the progress of each host, then the plan once its checks have passed (nothing runs yet), the code that
    `job.sync` sends and the progress of that, then the started run. Closing or exhausting the generator closes the
    links; a started run continues.

    Args:
        profile: Or what was prepared already, with its links, which stay open.
        source: The profile's file, to be stored with the run.
        resume_from: The folder on the hosts with the checkpoints of another run, to continue from.
        ssh_config: The ssh configuration of that run.
        command: The words that started it, to be stored with it; what looks like a secret is masked.
        run: Its id, from `new_run_id`; None: a new one.
        ignore_leases: Use GPUs and hosts even where others have reserved them.
        queued: Wait in the queue while others have reserved what the run uses.
        code: What to send in place of the folder of `job.sync` as it is now.

    Raises:
        InputError: A secret of the profile cannot be resolved, or the folder of `job.sync` cannot be sent.
        PreflightError: Checks forbid the start.
        DisttuiError: A host cannot be used or could not start it; nothing runs.
    """
    given = isinstance(profile, Prepared)
    wanted = profile.planned.profile if isinstance(profile, Prepared) else profile
    code = (code or collect_code(wanted, viewer.environ)) if wanted.job.sync else None
    if isinstance(profile, Prepared):
        prepared = profile
    else:
        resolve_secrets(viewer, profile)  # before any host is contacted: an unset variable must not leave half a gang
        notify_targets(viewer, profile)
        prepared = yield from stepwise(
            lambda tell: prepare(viewer, wanted, tell, ignore_leases=ignore_leases, queued=queued), Prepared.close
        )
    try:
        if wanted.job.environment:
            before = prepared  # a check of what is not built yet says little

            def reopen(node: int) -> Link:
                return viewer.open_link(before.planned.profile.hosts[node], ssh_config)

            prepared = yield from stepwise(lambda tell: built(viewer, before, reopen, tell))
        refuse(prepared.planned)
        yield prepared.planned
        if code:
            yield code
        known = yield from _launch(viewer, prepared, source, resume_from, ssh_config, command, run, code)
        yield Launched(known, prepared.links)
    finally:
        if not given:
            prepared.close()


def _launch(
    viewer: Viewer,
    prepared: Prepared,
    source: str | None,
    resume_from: str | None,
    ssh_config: str | None,
    command: Sequence[str],
    run: str | None,
    code: RunCode | None,
) -> Generator[HostStep, None, KnownRun]:
    """Start a prepared run; first its record is written, so that it can be attached to later."""
    planned = prepared.planned
    profile, plan, environ = planned.profile, planned.plan, viewer.environ
    secret_env, targets = resolve_secrets(viewer, profile), notify_targets(viewer, profile)
    known = keep(
        profile,
        [host.num_processes for host in plan.hosts],
        run or new_run_id(profile.name, run_names(environ)),
        environ,
        source=source,
        sandbox=viewer.sandbox is not None,
        ssh_config=viewer.config(ssh_config),
        resume_from=resume_from,
    )
    keep_origin(known, plan, planned.facts, prepared.links[0], command, environ, code)

    given_up: list[bool] = []

    def reopen(node: int) -> Link:
        if given_up:
            raise HostError(profile.hosts[node].name, "the start was given up")
        return viewer.open_link(profile.hosts[node], ssh_config)

    tree = code.sha256 if code else None
    try:
        if code:
            yield from carry(known, profile, code, prepared.links, reopen, environ)
        if profile.data:
            yield from stepwise(lambda tell: stage(viewer, known, profile, prepared.links, reopen, tell))
        if plan.batch is not None:
            login = Reachable(prepared.links[0], lambda: reopen(0))
            submit(known, plan, plan.batch, login, secret_env[0], targets, tree=tree)
        else:
            hosts = tuple(map(Surveyed, profile.hosts, prepared.links, planned.facts))
            yield from stepwise(
                lambda tell: launch(
                    known, plan, hosts, secret_env, targets, reopen,
                    ignore_leases=planned.ignore_leases, queued=planned.queued, tree=tree, tell=tell,
                )
            )  # fmt: skip
    except DisttuiError as error:
        known.failed(error.sentence)
        raise
    except GeneratorExit:
        given_up.append(True)
        known.failed("the start was given up")
        raise
    return known


_MOST = 1 << 20
"""Bytes of a file of git's that are read."""


def keep_origin(
    known: KnownRun,
    plan: Plan,
    facts: Sequence[HostFacts],
    first: Link,
    command: Sequence[str],
    environ: Mapping[str, str],
    code: RunCode | None = None,
) -> None:
    """Keep where a run that is about to start comes from; what cannot be written costs nothing else.

    Args:
        facts: Of the hosts of the profile, in its order.
        first: The link to the first of them.
        command: The words that started the run.
        code: What is sent to the hosts as its code.
    """
    profile = plan.profile
    files = [*([known.source] if known.source else []), *(each.path for each in profile.read_from)]
    library = next(filter(None, (source_of(Path(file), environ) for file in files)), None)
    made = Provenance(
        version=__version__,
        python=platform.python_version(),
        command=tuple(map(hidden, command)),
        hosts=tuple(versions(plan, one, node) for node, one in enumerate(facts)),
        library=library.name if library else "",
        library_commit=commit_of(library.folder) if library and library.url else "",
    )
    with suppress(OSError):
        made.save(known.folder)
        if code is not None:
            made.with_code(keep_code(known, code)).save(known.folder)
    if code is not None:
        return
    # The answer comes while the ranks start: nobody waits for it.
    script = profile.job.target.value if profile.job.target.kind == "script" else None
    asked = first.submit("code", workdir=plan.hosts[0].workdir, script=script)
    asked.add_done_callback(lambda answer: _keep_code(answer, made, known, profile.hosts[0].name))


def _keep_code(answer: Future[CodeState], made: Provenance, known: KnownRun, host: str) -> None:
    if answer.cancelled() or answer.exception() is not None:
        return
    found = answer.result()
    code = CodeKept(host, found["folder"], found["head"], found["diff"], found["cut"], tuple(found["untracked"]))
    with suppress(OSError):
        made.with_code(code).save(known.folder)


def versions(plan: Plan, facts: HostFacts, node: int) -> HostVersions:
    """What will run on a host, and what it has."""
    host = plan.profile.hosts[node]
    _, found, _ = find_python(plan.profile, host, facts)
    return HostVersions(
        host.name, plan.hosts[node].python, found.version if found else "", (found.torch if found else "") or "", facts
    )


def commit_of(folder: Path) -> str:
    """The commit that a clone has checked out, from its files; empty where that is not known."""
    git = folder / ".git"
    try:
        head = _text(git / "HEAD").strip()
        if head.startswith("ref: refs/") and ".." not in head:
            name = head.removeprefix("ref: ")
            try:
                head = _text(git.joinpath(*name.split("/"))).strip()
            except FileNotFoundError:
                lines = _text(git / "packed-refs").splitlines()
                head = next((line.split(" ")[0] for line in lines if line.endswith(f" {name}")), "")
    except (OSError, ValueError):
        return ""
    return head if re.fullmatch("[0-9a-f]{40,64}", head) else ""


def _text(file: Path) -> str:
    return private.read(file, _MOST)[0].decode()
