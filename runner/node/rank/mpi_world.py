"""One MPI world over all hosts of a run, without SSH between them.

For each other host, mpirun on the first one starts an agent, by default ssh, with the command of Open MPI's daemon
(orted). The agent here only writes that command to a file. The gang carries the necessary parts of it to the other
hosts, whose launchers start their own orted with them: each host runs only what its own supervisor has started.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import socket
import stat
import time
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Tuple

from ...protocol.regular import read_regular
from .identity import FIRST_RANK

if TYPE_CHECKING:
    from ...protocol.gang import MpiPlace

LEADS, JOINS = "leads", "joins"
"""The first word of the start line: mpirun for all hosts, or the daemon of this one."""
EARLY = "DISTTUI_EARLY"
"""The variable with the start line's words and variables (JSON) that let mpirun start before the line arrives."""
PLACE = "mpirun.place"
"""The file with what the daemons of the other hosts need."""
DAEMON = "mpirun.daemon"
"""The file with the command of a daemon, as requested by mpirun."""
RANK = '. "$DISTTUI_DIR/mpirun.rank"'
"""The shell code that mpirun runs for each rank: the same on all hosts, each of which has its own file."""
LEADER = {
    "OMPI_MCA_plm": "rsh",
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    # It is split at spaces, and our paths may contain some: so the words come in a variable, after a tab.
    "OMPI_MCA_plm_rsh_agent": 'sh -c eval\t"$DISTTUI_AGENT"',
    # If the list were longer, the daemons would not get the names of the hosts directly, but later.
    "OMPI_MCA_plm_base_node_regex_threshold": "100000",
    "DISTTUI_AGENT": f'f="$DISTTUI_DIR/{DAEMON}" && printf "%s\\n" "$@" > "$f.$$" && mv "$f.$$" "$f"',
}
"""Variables for mpirun."""
_PORTS = {"OMPI_MCA_btl_tcp_port_min_": "32768", "OMPI_MCA_btl_tcp_port_range_": "28232"}
"""The ranks' ports: the same range as for gloo. By default Open MPI begins at 1024."""
MEMBER = {"OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": "false"}
"""Variables for orted, which starts nothing on other hosts."""
INTERFACE = ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include")
"""The variables that name the interface of daemons and of ranks."""
_OTHERS = {name: name.replace("_include", "_exclude") for name in INTERFACE}
"""Open MPI fails if both of a pair are set."""
OF_DAEMONS = (INTERFACE[0], _OTHERS[INTERFACE[0]])
"""The variables that make mpirun announce only some of its addresses."""
_PLACE = {
    "version": re.compile(r"[ -~]{1,200}", re.ASCII),
    "job": re.compile(r"[0-9]{1,10}", re.ASCII),
    "nodes": re.compile(r"[A-Za-z0-9[][A-Za-z0-9.,:@()\[\]_-]{0,8191}", re.ASCII),
    "uri": re.compile(r"[0-9]{1,10}\.0(;tcp6?://[0-9A-Fa-f.,:\[\]]{1,4000}:[0-9]{1,5}){1,2}", re.ASCII),
}
"""The pattern of each field of `MpiPlace`."""
_NUMBERS = "export RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE"


def own_settings() -> Dict[str, str]:
    """This host's own Open MPI settings; an excluded interface replaces our choice of one."""
    for include, exclude in _OTHERS.items():
        if exclude in os.environ:
            os.environ.pop(include, None)
    return {name: value for name, value in os.environ.items() if name.startswith("OMPI_MCA_")}


def default_ports(own: Mapping[str, str]) -> Dict[str, str]:
    """The settings of the ranks' ports, for each family that this host has no setting for."""
    families = (family for family in ("v4", "v6") if not any(name + family in own for name in _PORTS))
    return {name + family: value for family in families for name, value in _PORTS.items()}


def asked() -> Optional[Dict[str, str]]:
    """The settings with which mpirun wants the other hosts' daemons started, None if it has not asked yet."""
    try:
        data = read_regular(os.path.join(os.environ["DISTTUI_DIR"], DAEMON), 1 << 20)  # longest command of a daemon
    except OSError:
        return None
    words = data.decode("utf-8", "replace").splitlines()
    return {words[at + 1]: words[at + 2].strip('"') for at in range(len(words) - 2) if words[at] == "-mca"}


def place_of(version: str, given: Dict[str, str]) -> "MpiPlace":
    """Return where mpirun waits for the daemons."""
    return {
        "version": version,
        "job": given.get("ess_base_jobid", ""),
        "nodes": given.get("orte_node_regex", ""),
        "uri": given.get("orte_hnp_uri", ""),
    }


def only_at(uri: str, address: str) -> str:
    """The URI reduced to one of its addresses; unchanged if it does not have it."""
    job, *ways = uri.split(";")
    for way in ways:
        family, _, place = way.partition("://")
        hosts, _, port = place.rpartition(":")
        if address in hosts.strip("[]").split(","):
            return "%s;%s://%s:%s" % (job, family, "[%s]" % address if ":" in address else address, port)
    return uri


def wrong_field(found: "MpiPlace") -> Optional[Tuple[str, str]]:
    """The first field, with its value, that hosts reject."""
    fields = {name: value for name, value in found.items() if isinstance(value, str)}
    return next(((name, value) for name, value in fields.items() if not _PLACE[name].fullmatch(value)), None)


def start_words(place: "MpiPlace", node: int, hosts: int) -> List[str]:
    """The start line's words for the launcher of another host."""
    return [JOINS, place["version"], place["job"], place["nodes"], place["uri"], str(node), str(hosts)]


def daemon(words: Sequence[str]) -> Dict[str, str]:
    """The variables of this host's daemon. `words`: the start line's words after the version.

    They are not options because other users of the host could read those.
    """
    job, nodes, uri, node, hosts = words
    return {
        "OMPI_MCA_ess": "env",
        "OMPI_MCA_ess_base_jobid": job,
        "OMPI_MCA_ess_base_vpid": node,
        "OMPI_MCA_ess_base_num_procs": hosts,
        "OMPI_MCA_orte_node_regex": nodes,
        "OMPI_MCA_orte_hnp_uri": uri,
    }


def reaches(uri: str) -> bool:
    """Whether the first host's mpirun accepts a connection from here, at any of its addresses."""
    until = time.monotonic() + 3.0  # seconds that a connection to mpirun may take
    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(selectors.DefaultSelector())
        for one in uri.split(";")[1:]:
            hosts, _, port = one.partition("://")[2].rpartition(":")
            for host in hosts.replace("[", "").replace("]", "").split(","):
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                try:
                    socket.inet_pton(family, host)  # a name would be looked up
                    connection = stack.enter_context(socket.socket(family))
                    connection.setblocking(False)
                    connection.connect_ex((host, int(port)))
                except (OSError, OverflowError):
                    continue
                waiting.register(connection, selectors.EVENT_WRITE, connection)
        while waiting.get_map() and time.monotonic() < until:
            for key, _ in waiting.select(until - time.monotonic()):
                waiting.unregister(key.fileobj)
                try:
                    key.data.getpeername()
                except OSError:
                    continue
                return True
    return False


def write_rank(variables: Mapping[str, str], words: Sequence[str], then: str) -> None:
    """Write the file that describes a rank of this host.

    Args:
        variables: This host's own settings of Open MPI, and what else mpirun has not given to its rank.
        then: Shell code that runs `"$@"` and notes its end.
    """
    lines = [
        "cd %s || exit 1" % shlex.quote(os.getcwd()),
        # mpirun has given its own settings to the ranks of all hosts.
        "unset %s" % " ".join(one for pair in _OTHERS.items() for one in pair),
        *("export %s=%s" % (name, shlex.quote(value)) for name, value in variables.items() if name.isidentifier()),
        # If each host is a world, the shim creates them.
        *(() if FIRST_RANK in os.environ else (_NUMBERS,)),
        "set -- %s" % " ".join(map(shlex.quote, words)),
        then,
    ]
    path = os.path.join(os.environ["DISTTUI_DIR"], "mpirun.rank")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write("".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape"))


_SESSION = "OMPI_MCA_orte_tmpdir_base"
_SHARED = tuple("OMPI_MCA_%s_backing_directory" % part for part in ("btl_vader", "osc_sm", "osc_rdma"))
"""The settings for memory that ranks of one host share."""
_SHARED_MEMORY = "/dev/shm"
_LINKS = ("mpirun.tmp", "mpirun.shm")
"""The links in the attempt's folder to the two folders."""
_PREFIX = "disttui-mpi-"
_GATE = "gate"
WAIT = f'read -r DISTTUI_GATE < "$DISTTUI_DIR/{_LINKS[0]}/{_GATE}" || exit 1; '
"""What the shell above a rank runs to wait until the gate is open: it reads one line from it."""


def make_session() -> Dict[str, str]:
    """Create the folders for temporary files of mpirun or its daemon; returns the settings. Raises OSError.

    They are private to this user: by default Open MPI uses predictable names, which others could create first.

    They are not in the run's folder, which may be on a shared file system: ranks map these files into memory.
    """
    made = {_SESSION: _make_folder(_LINKS[0], os.environ.get(_SESSION))}
    shared = [name for name in _SHARED if name not in os.environ]
    if shared and os.access(_SHARED_MEMORY, os.W_OK):
        made.update(dict.fromkeys(shared, _make_folder(_LINKS[1], _SHARED_MEMORY)))
    return made


def _make_folder(link: str, parent: Optional[str]) -> str:
    import tempfile  # every supervisor imports this module, and few make such folders

    path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    try:
        os.symlink(path, os.path.join(os.environ["DISTTUI_DIR"], link))
    except OSError:
        os.rmdir(path)
        raise
    return path


def make_gate() -> int:
    """Create a gate for the ranks of this host, after the folders; returns its descriptor. Raises OSError.

    Ranks wait there while we hold the descriptor; when we end, they continue without a line.
    """
    path = os.path.join(os.environ["DISTTUI_DIR"], _LINKS[0], _GATE)
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def open_gate(gate: int, ranks: int) -> None:
    """Let the ranks through, including those that come later."""
    os.write(gate, b"\n" * ranks)


def remove_session(attempt_folder: str) -> None:
    """Remove what an attempt on this host has created; also called by its supervisor: launchers may be killed."""
    for link in _LINKS:
        _remove_folder(os.path.join(attempt_folder, link))


def _remove_folder(link: str) -> None:
    try:
        path = os.readlink(link)
        os.unlink(link)
        found = os.lstat(path)
    except OSError:
        return
    # The job's own code may have put another link there.
    if os.path.basename(path).startswith(_PREFIX) and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
        import shutil

        shutil.rmtree(path, ignore_errors=True)
