"""One MPI world over all hosts of a run, without SSH between them.

For each other host mpirun of the first one starts an agent, by default ssh, with the command of Open MPI's daemon
(orted). The agent here only writes that command down. The gang carries what is needed of it to the other hosts, and the
launcher of each starts its own orted with it: on each host nothing is run but what its own supervisor has started.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence

if TYPE_CHECKING:
    from ...protocol.gang import MpiPlace

LEADS, JOINS = "leads", "joins"
"""The first word of the start line: mpirun for all hosts, or the daemon of this one."""
PLACE = "mpirun.place"
"""The file with what the daemons of the other hosts need."""
RANK = '. "$DISTTUI_DIR/mpirun.rank"'
"""What mpirun has a shell run for each rank: the same words on all hosts, where each has a file of its own."""
LEADER = {
    "OMPI_MCA_plm": "rsh",
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    # It is split at blanks, and our paths may have some: so the words come in a variable, behind a tab.
    "OMPI_MCA_plm_rsh_agent": 'sh -c eval\t"$DISTTUI_AGENT"',
    "DISTTUI_AGENT": 'f="$DISTTUI_DIR/mpirun.daemon" && printf "%s\\n" "$@" > "$f.$$" && mv "$f.$$" "$f"',
}
"""The variables of mpirun."""
DEFAULTS = {"OMPI_MCA_btl_tcp_port_min_v4": "32768", "OMPI_MCA_btl_tcp_port_range_v4": "28232"}
"""Where ranks listen: at the ports that gloo takes, too. By itself Open MPI begins at 1024."""
MEMBER = {"OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": "false"}
"""The variables of orted, which starts nothing on other hosts."""
INTERFACE = ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include")
"""The variables that name the interface of daemons and of ranks."""


def asked() -> Optional[Dict[str, str]]:
    """The settings with which mpirun wants the other hosts' daemons started, None: it has not asked yet."""
    try:
        with open(os.path.join(os.environ["DISTTUI_DIR"], "mpirun.daemon"), encoding="utf-8") as file:
            words = file.read().splitlines()
    except OSError:
        return None
    return {words[at + 1]: words[at + 2].strip('"') for at in range(len(words) - 2) if words[at] == "-mca"}


def place_of(version: str, given: Dict[str, str]) -> "MpiPlace":
    """Where mpirun waits for the daemons."""
    return {
        "version": version,
        "job": given.get("ess_base_jobid", ""),
        "nodes": given.get("orte_node_regex", ""),
        "uri": given.get("orte_hnp_uri", ""),
    }


def start_words(place: "MpiPlace", node: int, hosts: int) -> List[str]:
    """The start line's words for the launcher of another host."""
    return [JOINS, place["version"], place["job"], place["nodes"], place["uri"], str(node), str(hosts)]


def daemon(program: str, words: Sequence[str]) -> List[str]:
    """The command of this host's daemon. `words`: of the start line, behind the version."""
    job, nodes, uri, node, hosts = words
    given = {
        "ess": "env",
        "ess_base_jobid": job,
        "ess_base_vpid": node,
        "ess_base_num_procs": hosts,
        "orte_node_regex": nodes,
        "orte_hnp_uri": uri,
    }
    return [program, *(word for name, value in given.items() for word in ("-mca", name, value))]


def write_rank(words: Sequence[str], then: str) -> None:
    """Write what a rank of this host is. `then`: shell code that runs `"$@"` and notes its end."""
    lines = [
        "cd %s || exit 1" % shlex.quote(os.getcwd()),
        # mpirun has given the ranks of all hosts those of its own.
        *("export %s=%s" % (name, shlex.quote(os.environ[name])) for name in INTERFACE if name in os.environ),
        "export RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE",
        "set -- %s" % " ".join(map(shlex.quote, words)),
        then,
    ]
    path = os.path.join(os.environ["DISTTUI_DIR"], "mpirun.rank")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write("".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape"))
