"""The API of disttui: for the command line, the app, scripts and notebooks (docs/api.md).

The names here are stable; their modules are imported when a name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.api.comparing import Comparison as Comparison
    from runner.api.comparing import compare as compare
    from runner.api.diagnosing import Diagnosed as Diagnosed
    from runner.api.diagnosing import diagnose as diagnose
    from runner.api.ending import StopAsked as StopAsked
    from runner.api.ending import StopResult as StopResult
    from runner.api.ending import catch_up as catch_up
    from runner.api.ending import forget as forget
    from runner.api.ending import forget_here as forget_here
    from runner.api.ending import stop as stop
    from runner.api.exporting import export_profile as export_profile
    from runner.api.exporting import save_exported as save_exported
    from runner.api.finding import adopt as adopt
    from runner.api.finding import find_run as find_run
    from runner.api.finding import known_runs as known_runs
    from runner.api.following import Following as Following
    from runner.api.following import attach as attach
    from runner.api.following import follow as follow
    from runner.api.importing import import_profile as import_profile
    from runner.api.leasing import HostLeases as HostLeases
    from runner.api.leasing import HostsInUse as HostsInUse
    from runner.api.leasing import Moved as Moved
    from runner.api.leasing import WaitingRun as WaitingRun
    from runner.api.leasing import lease as lease
    from runner.api.leasing import move as move
    from runner.api.leasing import queue as queue
    from runner.api.leasing import release as release
    from runner.api.leasing import who as who
    from runner.api.libraries import LibraryContent as LibraryContent
    from runner.api.libraries import LibraryProfile as LibraryProfile
    from runner.api.libraries import add_library as add_library
    from runner.api.libraries import check_libraries as check_libraries
    from runner.api.libraries import list_library as list_library
    from runner.api.libraries import remove_library as remove_library
    from runner.api.libraries import sync_libraries as sync_libraries
    from runner.api.library import DistrustError as DistrustError
    from runner.api.library import ReadProfile as ReadProfile
    from runner.api.library import load_profile as load_profile
    from runner.api.library import read_profile as read_profile
    from runner.api.library_edits import LibraryEdit as LibraryEdit
    from runner.api.library_edits import copy_profile as copy_profile
    from runner.api.library_edits import read_for_edit as read_for_edit
    from runner.api.library_edits import restore_profile as restore_profile
    from runner.api.library_edits import save_profile as save_profile
    from runner.api.listing import Listing as Listing
    from runner.api.listing import RunStatus as RunStatus
    from runner.api.listing import list_runs as list_runs
    from runner.api.listing import refresh as refresh
    from runner.api.log_lines import LineFilter as LineFilter
    from runner.api.log_lines import LogLines as LogLines
    from runner.api.log_lines import logs as logs
    from runner.api.news import HostNotice as HostNotice
    from runner.api.old import Old as Old
    from runner.api.old import OldRuns as OldRuns
    from runner.api.old import old_runs as old_runs
    from runner.api.old import remove as remove
    from runner.api.orphan_search import Orphans as Orphans
    from runner.api.orphan_search import orphans as orphans
    from runner.api.preparing import Planned as Planned
    from runner.api.preparing import PreflightError as PreflightError
    from runner.api.preparing import Prepared as Prepared
    from runner.api.preparing import launch as launch
    from runner.api.preparing import prepare as prepare
    from runner.api.preparing import weigh as weigh
    from runner.api.probing import Probed as Probed
    from runner.api.probing import probe as probe
    from runner.api.pulling import Pulled as Pulled
    from runner.api.pulling import PulledFile as PulledFile
    from runner.api.pulling import ToFetch as ToFetch
    from runner.api.pulling import pull as pull
    from runner.api.questions import Doubt as Doubt
    from runner.api.questions import Questions as Questions
    from runner.api.questions import Unattended as Unattended
    from runner.api.replaying import replay as replay
    from runner.api.rerunning import Again as Again
    from runner.api.rerunning import newest_checkpoint as newest_checkpoint
    from runner.api.rerunning import rerun as rerun
    from runner.api.searching import begin_search as begin_search
    from runner.api.searching import best_of as best_of
    from runner.api.searching import continue_search as continue_search
    from runner.api.sweeping import Sweep as Sweep
    from runner.api.sweeping import SweptRun as SweptRun
    from runner.api.sweeping import find_sweep as find_sweep
    from runner.api.sweeping import start_sweep as start_sweep
    from runner.api.tracking import Sent as Sent
    from runner.api.tracking import send_metrics as send_metrics
    from runner.api.trial import LogTrial as LogTrial
    from runner.api.viewer import Viewer as Viewer
    from runner.api.watching import top as top
    from runner.api.watching import watch_hosts as watch_hosts
    from runner.api.weights import export_weights as export_weights
    from runner.api.weights import fetch_weights as fetch_weights
    from runner.errors import DisttuiError as DisttuiError
    from runner.errors import HostError as HostError
    from runner.errors import InputError as InputError
    from runner.errors import LinkLostError as LinkLostError
    from runner.runs.follow import LinkNews as LinkNews
    from runner.runs.follow import LogRead as LogRead
    from runner.runs.follow import Notice as Notice
    from runner.runs.follow import RecordRead as RecordRead
    from runner.runs.registry import KnownRun as KnownRun
    from runner.runs.session import CaughtUp as CaughtUp
    from runner.runs.session import Refresh as Refresh
    from runner.runs.session import StopSent as StopSent
    from runner.runs.session import Update as Update
    from runner.runs.session import Wishes as Wishes
    from runner.runs.state import RunState as RunState

_HOMES = {
    "runner.api.comparing": "Comparison compare",
    "runner.api.diagnosing": "Diagnosed diagnose",
    "runner.api.ending": "StopAsked StopResult catch_up forget forget_here stop",
    "runner.api.exporting": "export_profile save_exported",
    "runner.api.finding": "adopt find_run known_runs",
    "runner.api.following": "Following attach follow",
    "runner.api.importing": "import_profile",
    "runner.api.leasing": "HostLeases HostsInUse Moved WaitingRun lease move queue release who",
    "runner.api.libraries": "LibraryContent LibraryProfile add_library check_libraries list_library remove_library "
    "sync_libraries",
    "runner.api.library_edits": "LibraryEdit copy_profile read_for_edit restore_profile save_profile",
    "runner.api.library": "DistrustError ReadProfile load_profile read_profile",
    "runner.api.listing": "Listing RunStatus list_runs refresh",
    "runner.api.log_lines": "LineFilter LogLines logs",
    "runner.api.news": "HostNotice",
    "runner.api.old": "Old OldRuns old_runs remove",
    "runner.api.orphan_search": "Orphans orphans",
    "runner.api.preparing": "Planned PreflightError Prepared launch prepare weigh",
    "runner.api.probing": "Probed probe",
    "runner.api.pulling": "Pulled PulledFile ToFetch pull",
    "runner.api.questions": "Doubt Questions Unattended",
    "runner.api.replaying": "replay",
    "runner.api.rerunning": "Again newest_checkpoint rerun",
    "runner.api.tracking": "Sent send_metrics",
    "runner.api.searching": "begin_search best_of continue_search",
    "runner.api.sweeping": "Sweep SweptRun find_sweep start_sweep",
    "runner.api.trial": "LogTrial",
    "runner.api.viewer": "Viewer",
    "runner.api.watching": "top watch_hosts",
    "runner.api.weights": "export_weights fetch_weights",
    "runner.errors": "DisttuiError HostError InputError LinkLostError",
    "runner.runs.follow": "LinkNews LogRead Notice RecordRead",
    "runner.runs.registry": "KnownRun",
    "runner.runs.session": "CaughtUp Refresh StopSent Update Wishes",
    "runner.runs.state": "RunState",
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
