"""The `data` of a profile: brought to every host before the ranks start, and copied again only when it changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from disttui.runner.api.carrying import code_store, meeting_addresses
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, HostError, InputError
from disttui.runner.hosts.answers import StagedTree
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import HostsError, Tell
from disttui.runner.profile import Profile
from disttui.runner.profile.problems import printable
from disttui.runner.profile.sections import Data
from disttui.runner.protocol import tree
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.remote import stream_all, together
from disttui.runner.sync.collect import Wanted, collect, omission_lines
from disttui.runner.sync.transfer import TreeParcel, send
from disttui.runner.user.folders import user_folder


def stage(
    viewer: Viewer, known: KnownRun, profile: Profile, links: Sequence[Link], reopen: Callable[[int], Link], tell: Tell
) -> None:
    """Have all hosts have the data of a profile. Raises DisttuiError, which names host, source and cure."""
    for index in range(len(profile.data)):
        _Staging(viewer, known, profile, index, links, reopen, tell).run()


class _Staging:
    """One entry of `data`."""

    def __init__(
        self, viewer: Viewer, known: KnownRun, profile: Profile, index: int,
        links: Sequence[Link], reopen: Callable[[int], Link], tell: Tell,
    ) -> None:  # fmt: skip
        self._viewer, self._known, self._profile, self._index = viewer, known, profile, index
        self._data: Data = profile.data[index]
        self._links, self._reopen = links, reopen
        self._store = code_store(viewer.environ)
        self._tell: Tell = lambda node, kind, note: tell(node, "data", f"{self._data.to}: {note}")

    def run(self) -> None:
        host, _ = self._data.host_path
        nodes = [node for node, one in enumerate(self._profile.hosts) if one.name == host] or range(len(self._links))
        try:
            if not self._data.is_address and not host:
                parcel, single = self._collected()
                self._send(parcel, single=single)
                return
            found = self._fetched(nodes)
            if self._data.sha256 and self._data.sha256 != tree.decode(found["manifest"])[0].value:
                raise HostError(host, "it does not have the sha256 of the profile", "Correct it, or the file.")
            parcel = TreeParcel(found["tree"], found["manifest"], self._store, here=False)
            self._store.add(found["manifest"])
            try:
                self._send(parcel, single=found["file"])
            except HostError:
                if host:
                    raise
                self._ask(nodes, fetch=True)  # some reach no other host, but perhaps the address
                self._send(parcel, single=found["file"])
        except DisttuiError as error:
            parts = [self._named(part) for part in error.parts or [error]]
            raise parts[0] if len(parts) == 1 else HostsError(parts) from None

    def _named(self, error: DisttuiError) -> DisttuiError:
        if isinstance(error, InputError):
            return error
        what = f"data {self._data.to} from {printable(self._data.source)}: {error.what}"
        return HostError(error.host, what, error.cure, cause=error.cause)

    def _send(self, parcel: TreeParcel, *, single: bool) -> None:
        send(
            parcel, self._links, run=self._known.run, run_dir=self._known.run_dir, to=self._data.to,
            reopen=self._reopen, tell=self._tell, addresses=meeting_addresses(self._profile)[: len(self._links)],
            ports=self._profile.launch.ports, data="file" if single else "folder",
        )  # fmt: skip

    def _collected(self) -> tuple[TreeParcel, bool]:
        """What this machine has. Raises InputError."""
        place = ("data", self._index, "from")
        path = self._profile.local_path(self._data.source, *place)
        cure = f"Correct data.{self._index}.from."
        try:
            path = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(f"cannot read the data: {why}", cure, place=printable(str(path))) from None
        single = not path.is_dir()
        wanted = Wanted(path.parent if single else path, whole=True, only=path.name if single else "")
        found = collect(wanted, self._store, user_folder("cache", self._viewer.environ) / "sync")
        for line in omission_lines(found.omitted):
            self._tell(0, "data", f"not sent: {line}")
        if not found.entries:
            raise InputError("there are no files in it", cure, place=printable(str(path)))
        if not single and self._data.sha256:
            raise InputError("sha256 is of a file, and this is a folder", "Remove it.", place=printable(str(path)))
        if not single:
            return TreeParcel(found.sha256, found.manifest, self._store), False
        if self._data.sha256 not in (None, found.entries[0].value):
            what = f"it has the SHA-256 {found.entries[0].value}"
            raise InputError(what, f"Correct data.{self._index}.sha256, or the file.", place=printable(str(path)))
        name = os.fsencode(PurePosixPath(self._data.to).name)
        manifest = tree.encode([found.entries[0]._replace(path=name)])
        self._store.add(manifest)
        return TreeParcel(tree.digest(manifest), manifest, self._store), True

    def _fetched(self, nodes: Sequence[int]) -> StagedTree:
        """What a host has, or the first one that can fetch it has then. Raises DisttuiError."""
        if self._data.is_address and (
            found := next((one for one in self._ask(nodes, fetch=False) if one["tree"]), None)
        ):
            return found
        errors: list[DisttuiError] = []
        for node in nodes:
            try:
                return self._ask([node], fetch=True)[0]
            except DisttuiError as error:
                errors.append(error)
        raise together(errors)

    def _ask(self, nodes: Sequence[int], *, fetch: bool) -> list[StagedTree]:
        requests = {}
        for node in nodes:
            plain, secret = self._profile.split_env(node, self._viewer.secrets.value)
            requests[node] = {
                "source": self._data.host_path[1] or self._data.source, "to": self._data.to, "fetch": fetch,
                "size": self._data.size or 0, "sha256": self._data.sha256 or "", "env": {**plain, **secret},
            }  # fmt: skip
        return stream_all(self._links, "stage", requests, "data", self._tell)
