"""Texts for a pull."""

from __future__ import annotations

from pathlib import Path

from runner.api.news import HostNotice
from runner.api.pulling import Pulled, PullNews, ToFetch
from runner.formatting import amount, gibibytes
from runner.ids import short
from runner.runs.registry import KnownRun
from runner.text import clean


def news_line(news: PullNews) -> str:
    """The line for files to be fetched, for a copied file, or for an error of a host."""
    if isinstance(news, HostNotice):
        return f"{clean(news.host)}: {news.text}"
    if isinstance(news, ToFetch):
        return f"{clean(news.host)}: {amount(news.files, 'file')} to fetch, {gibibytes(news.size)}"
    return f"{clean(str(news.path))} ({gibibytes(news.size)} from {clean(news.host)})"


def pulled_lines(run: KnownRun, pulled: Pulled, to: Path) -> list[str]:
    """The result of a pull."""
    if not pulled.offered:
        looked = ", ".join(map(clean, pulled.looked))
        where = f"{clean(run.run_dir)}/{run.run}"
        return [
            f"{short(run.run)} has left nothing to pull: looked on {looked} for files in {where}",
            "What a job writes to $DISTTUI_CHECKPOINTS stands there, and whatever else it puts into that folder",
            "Name what it writes to its own folder in the profile: job.outputs: [out/]",
        ]
    if not pulled.fetched:
        return [f"{to}: {amount(pulled.offered, 'file')} here already, nothing is new"]
    count = amount(len(pulled.fetched), "file")
    return [f"{to}: {count}, {gibibytes(pulled.bytes)} fetched, checksums are right"]
