"""disttui as a library: everything that the command line and the app do, as functions (docs/api.md).

The names here are stable; their modules are imported when a name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from disttui.runner import __version__ as __version__

if TYPE_CHECKING:
    from disttui.runner.api.carrying import HostStep as HostStep
    from disttui.runner.api.carrying import RunCode as RunCode
    from disttui.runner.api.comparing import Comparison as Comparison
    from disttui.runner.api.comparing import compare as compare
    from disttui.runner.api.diagnosing import Diagnosed as Diagnosed
    from disttui.runner.api.diagnosing import diagnose as diagnose
    from disttui.runner.api.ending import Old as Old
    from disttui.runner.api.ending import OldRuns as OldRuns
    from disttui.runner.api.ending import StopAsked as StopAsked
    from disttui.runner.api.ending import StopResult as StopResult
    from disttui.runner.api.ending import catch_up as catch_up
    from disttui.runner.api.ending import forget as forget
    from disttui.runner.api.ending import forget_here as forget_here
    from disttui.runner.api.ending import old_runs as old_runs
    from disttui.runner.api.ending import remove as remove
    from disttui.runner.api.ending import stop as stop
    from disttui.runner.api.ending import stop_runs as stop_runs
    from disttui.runner.api.finding import adopt as adopt
    from disttui.runner.api.finding import find_run as find_run
    from disttui.runner.api.finding import known_runs as known_runs
    from disttui.runner.api.finding import select_runs as select_runs
    from disttui.runner.api.following import Fired as Fired
    from disttui.runner.api.following import attach as attach
    from disttui.runner.api.following import follow as follow
    from disttui.runner.api.following import replay as replay
    from disttui.runner.api.following import try_rules as try_rules
    from disttui.runner.api.interop import export_profile as export_profile
    from disttui.runner.api.interop import import_profile as import_profile
    from disttui.runner.api.interop import save_exported as save_exported
    from disttui.runner.api.leasing import HostLeases as HostLeases
    from disttui.runner.api.leasing import HostsInUse as HostsInUse
    from disttui.runner.api.leasing import Moved as Moved
    from disttui.runner.api.leasing import WaitingRun as WaitingRun
    from disttui.runner.api.leasing import lease as lease
    from disttui.runner.api.leasing import move as move
    from disttui.runner.api.leasing import queue as queue
    from disttui.runner.api.leasing import release as release
    from disttui.runner.api.leasing import who as who
    from disttui.runner.api.libraries import LibraryContent as LibraryContent
    from disttui.runner.api.libraries import LibraryProfile as LibraryProfile
    from disttui.runner.api.libraries import add_library as add_library
    from disttui.runner.api.libraries import check_libraries as check_libraries
    from disttui.runner.api.libraries import list_library as list_library
    from disttui.runner.api.libraries import remove_library as remove_library
    from disttui.runner.api.libraries import sync_libraries as sync_libraries
    from disttui.runner.api.library import DistrustError as DistrustError
    from disttui.runner.api.library import ReadProfile as ReadProfile
    from disttui.runner.api.library import load_profile as load_profile
    from disttui.runner.api.library import read_profile as read_profile
    from disttui.runner.api.library import script_profile as script_profile
    from disttui.runner.api.library_edits import LibraryEdit as LibraryEdit
    from disttui.runner.api.library_edits import copy_profile as copy_profile
    from disttui.runner.api.library_edits import read_for_edit as read_for_edit
    from disttui.runner.api.library_edits import restore_profile as restore_profile
    from disttui.runner.api.library_edits import save_profile as save_profile
    from disttui.runner.api.listing import Listing as Listing
    from disttui.runner.api.listing import RunFilter as RunFilter
    from disttui.runner.api.listing import list_runs as list_runs
    from disttui.runner.api.listing import refresh as refresh
    from disttui.runner.api.log_lines import LineFilter as LineFilter
    from disttui.runner.api.log_lines import LogLines as LogLines
    from disttui.runner.api.log_lines import logs as logs
    from disttui.runner.api.orphan_search import Orphans as Orphans
    from disttui.runner.api.orphan_search import orphans as orphans
    from disttui.runner.api.orphan_search import top as top
    from disttui.runner.api.orphan_search import watch_hosts as watch_hosts
    from disttui.runner.api.preparing import Planned as Planned
    from disttui.runner.api.preparing import PreflightError as PreflightError
    from disttui.runner.api.preparing import Prepared as Prepared
    from disttui.runner.api.preparing import Tested as Tested
    from disttui.runner.api.preparing import plan_run as plan_run
    from disttui.runner.api.preparing import prepare as prepare
    from disttui.runner.api.preparing import try_notify as try_notify
    from disttui.runner.api.probing import Probed as Probed
    from disttui.runner.api.probing import probe as probe
    from disttui.runner.api.pulling import Pulled as Pulled
    from disttui.runner.api.pulling import PulledFile as PulledFile
    from disttui.runner.api.pulling import ToFetch as ToFetch
    from disttui.runner.api.pulling import pull as pull
    from disttui.runner.api.questions import Doubt as Doubt
    from disttui.runner.api.questions import HostNotice as HostNotice
    from disttui.runner.api.questions import Questions as Questions
    from disttui.runner.api.questions import Unattended as Unattended
    from disttui.runner.api.rerunning import Again as Again
    from disttui.runner.api.rerunning import export_weights as export_weights
    from disttui.runner.api.rerunning import fetch_weights as fetch_weights
    from disttui.runner.api.rerunning import newest_checkpoint as newest_checkpoint
    from disttui.runner.api.rerunning import rerun as rerun
    from disttui.runner.api.running import StartedRun as StartedRun
    from disttui.runner.api.running import run as run
    from disttui.runner.api.starting import Launched as Launched
    from disttui.runner.api.starting import start as start
    from disttui.runner.api.sweeping import Sweep as Sweep
    from disttui.runner.api.sweeping import SweptRun as SweptRun
    from disttui.runner.api.sweeping import find_sweep as find_sweep
    from disttui.runner.api.sweeping import start_sweep as start_sweep
    from disttui.runner.api.tracking import LogTrial as LogTrial
    from disttui.runner.api.tracking import Sent as Sent
    from disttui.runner.api.tracking import send_metrics as send_metrics
    from disttui.runner.api.viewer import Viewer as Viewer
    from disttui.runner.api.waiting import Waited as Waited
    from disttui.runner.api.waiting import wait as wait
    from disttui.runner.errors import DisttuiError as DisttuiError
    from disttui.runner.errors import HostError as HostError
    from disttui.runner.errors import InputError as InputError
    from disttui.runner.errors import LinkLostError as LinkLostError
    from disttui.runner.runs.follow import LinkNews as LinkNews
    from disttui.runner.runs.follow import LogRead as LogRead
    from disttui.runner.runs.follow import Notice as Notice
    from disttui.runner.runs.follow import RecordRead as RecordRead
    from disttui.runner.runs.following import CaughtUp as CaughtUp
    from disttui.runner.runs.following import Following as Following
    from disttui.runner.runs.following import Refresh as Refresh
    from disttui.runner.runs.following import RunControl as RunControl
    from disttui.runner.runs.following import StopSent as StopSent
    from disttui.runner.runs.following import Update as Update
    from disttui.runner.runs.registry import KnownRun as KnownRun
    from disttui.runner.runs.replay import MetricRecord as MetricRecord
    from disttui.runner.runs.replay import Replay as Replay
    from disttui.runner.runs.state import RunState as RunState
    from disttui.runner.runs.summary import RunStatus as RunStatus

_HOMES = {
    "disttui.runner.api.carrying": "RunCode HostStep",
    "disttui.runner.api.comparing": "Comparison compare",
    "disttui.runner.api.diagnosing": "Diagnosed diagnose",
    "disttui.runner.api.ending": (
        "Old OldRuns StopAsked StopResult catch_up forget forget_here old_runs remove stop stop_runs"
    ),
    "disttui.runner.api.finding": "adopt find_run known_runs select_runs",
    "disttui.runner.api.following": "Fired attach follow replay try_rules",
    "disttui.runner.api.interop": "export_profile import_profile save_exported",
    "disttui.runner.api.leasing": "HostLeases HostsInUse Moved WaitingRun lease move queue release who",
    "disttui.runner.api.libraries": (
        "LibraryContent LibraryProfile add_library check_libraries list_library remove_library sync_libraries"
    ),
    "disttui.runner.api.library": "DistrustError ReadProfile load_profile read_profile script_profile",
    "disttui.runner.api.library_edits": "LibraryEdit copy_profile read_for_edit restore_profile save_profile",
    "disttui.runner.api.listing": "Listing RunFilter list_runs refresh",
    "disttui.runner.api.log_lines": "LineFilter LogLines logs",
    "disttui.runner.api.orphan_search": "Orphans orphans top watch_hosts",
    "disttui.runner.api.preparing": "Planned PreflightError Prepared Tested plan_run prepare try_notify",
    "disttui.runner.api.probing": "Probed probe",
    "disttui.runner.api.pulling": "Pulled PulledFile ToFetch pull",
    "disttui.runner.api.questions": "Doubt HostNotice Questions Unattended",
    "disttui.runner.api.rerunning": "Again export_weights fetch_weights newest_checkpoint rerun",
    "disttui.runner.api.running": "StartedRun run",
    "disttui.runner.api.starting": "Launched start",
    "disttui.runner.api.sweeping": "Sweep SweptRun find_sweep start_sweep",
    "disttui.runner.api.tracking": "LogTrial Sent send_metrics",
    "disttui.runner.api.viewer": "Viewer",
    "disttui.runner.api.waiting": "Waited wait",
    "disttui.runner.errors": "DisttuiError HostError InputError LinkLostError",
    "disttui.runner.runs.follow": "LinkNews LogRead Notice RecordRead",
    "disttui.runner.runs.following": "CaughtUp Following Refresh RunControl StopSent Update",
    "disttui.runner.runs.registry": "KnownRun",
    "disttui.runner.runs.replay": "MetricRecord Replay",
    "disttui.runner.runs.state": "RunState",
    "disttui.runner.runs.summary": "RunStatus",
}
"""Module → the names it defines."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - one list, not two


def __getattr__(name: str) -> Any:
    """Import the module of a name, once."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    # A submodule may have the same name: the function replaces it.
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
