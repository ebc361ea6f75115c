"""Every way to get a profile wrong: the exact words, the exact place, all at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttui.runner.errors import InputError
from disttui.runner.profile.load import load, parse
from disttui.runner.profile.problems import ProfileErrors


def profile(**changes: str | None) -> str:
    """A good profile of three lines with keys changed, added behind or (None) left out."""
    lines = {"disttui": "1", "hosts": "[node1, node2]", "job": "{builtin: bytegpt}", **changes}
    return "".join(f"{key}: {value}\n" for key, value in lines.items() if value is not None)


def wrong(text: str, source: str = "p") -> str:
    with pytest.raises(ProfileErrors) as caught:
        parse(text, source)
    return str(caught.value)


HOST = "expected an ssh alias, user@host:port or local"
BELOW = "expected a folder or a file below workdir, like out/"
ONE = "expected exactly one of builtin, script, module and command"
TEXT = "expected text (in quotes if necessary)"
PORTS = "is not a range of ports, expected a port from 1024 to 65535, or a range, like 29500-29599"

SCHEMA = [
    (profile(nproces="2"), "4:1: unknown key 'nproces', did you mean 'num_processes'?"),
    (profile(nproc_per_node="2"), "4:1: unknown key 'nproc_per_node', did you mean 'num_processes'?"),
    (profile(strategy="fsdp"), "4:1: unknown key 'strategy', it belongs under 'parallel'"),
    (profile(script="x.py"), "4:1: unknown key 'script', it belongs under 'job'"),
    (profile(metrics="{zzz: 1}"), "4:11: unknown key 'zzz', expected one of pattern"),
    (profile(disttui=None), "1:1: 'disttui' is missing, expected 'disttui: 1', the version of the schema"),
    (profile(disttui="one"), "1:10: disttui: unknown schema version, expected 1"),
    (profile(disttui="7", what="x"), "1:10: written by a newer disttui: schema 7, this one reads 1, upgrade disttui"),
    (profile(name="2 Node!"), "4:7: name: '2 Node!' is not a valid profile name (a-z 0-9 . _ -, at most 40, "
                              "a letter or digit first), try '2-node'"),
    (profile(description="[a]"), f"4:14: description: a list, {TEXT}"),
    (profile(num_processes="0"), "4:16: num_processes: '0', expected a whole number from 1 to 1,024 or auto"),
    (profile(num_processes="1.5"), "4:16: num_processes: '1.5', expected a whole number from 1 to 1,024 or auto"),
    (profile(num_processes="12:30"), "4:16: num_processes: '12:30', expected a whole number from 1 to 1,024 or auto"),
    (profile(num_processes="010"), "4:16: num_processes: '010' begins with 0, which YAML may read as octal, write 10"),
    (profile(num_processes="[1]"), "4:16: num_processes: a list, expected a whole number"),
    (profile(python="a b"), "4:9: python: 'a b', expected a name, an absolute path or ~/…, "
                            "without ' \" ! $ ` \\"),
    (profile(python="/x$(reboot)"), "4:9: python: '/x$(reboot)', expected a name, an absolute path or ~/…, "
                                    "without ' \" ! $ ` \\"),
    (profile(python="-c"), "4:9: python: '-c', expected a name, an absolute path or ~/…, "
                           "without ' \" ! $ ` \\"),
    (profile(parallel="fsdp"), "4:11: parallel: 'fsdp', expected a mapping, like {key: value}"),
    (profile(parallel="{strategy: zero}"), "4:22: strategy: 'zero', expected auto or ddp or fsdp or hsdp"),
    (profile(parallel="{tp: 0}"), "4:16: tp: '0', expected a whole number from 1 to 65,536 or auto"),
    (profile(parallel="{tp: 3}"), "4:16: 4 heads cannot be divided by tp 3, expected 1, 2 or 4"),
    (profile(parallel="{cp: 3}"), "4:16: 4 heads cannot be divided by cp 3, expected 1, 2 or 4"),
    (profile(parallel="{tp: 2, cp: 4}"), "4:23: 2 heads of each of tp 2 cannot be divided by cp 4, expected 1 or 2"),
    (profile(job="{builtin: bytegpt, args: [--context, 126]}", parallel="{cp: 4}"),
     "4:16: a sequence of 126 bytes cannot be divided by cp 4, expected 1 or 2"),
    (profile(job="{builtin: bytegpt, args: [--tp=3]}", parallel="{pp: 2}"),
     "3:32: 4 heads cannot be divided by tp 3, expected 1, 2 or 4"),
    (profile(parallel="{pp: 5}"), "4:16: pp 5 stages, but only 4 layers, expected 1 to 4"),
    (profile(parallel="{strategy: ddp, dp_shard: 2}"),
     "4:37: dp_shard 2, but ddp shards nothing, expected strategy fsdp or hsdp"),
    (profile(parallel="{strategy: fsdp, dp_replicate: 2}"),
     "4:42: dp_replicate 2, but fsdp keeps one copy, expected strategy hsdp or ddp"),
    (profile(num_processes="4", parallel="{dp_replicate: 3, tp: 2}"),
     "5:26: dp_replicate 3 × tp 2 = 6 does not divide the 8 processes, expected dp_replicate 1, 2 or 4"),
    (profile(num_processes="4", parallel="{dp_replicate: 2, dp_shard: 2}"),
     "5:39: dp_replicate 2 × dp_shard 2 = 4 does not make the 8 processes, expected dp_replicate 4; or dp_shard 4"),
    (profile(num_processes="3", parallel="{tp: 4}"),
     "5:16: tp 4 does not divide the 6 processes, expected tp 1, 2, 3 or 6"),
    (profile(job="{script: x}", parallel="{tp: 2}"),
     "4:16: tp applies only to the built-in job, remove it, and use an argument of your own job"),
    (profile(job="{builtin: bytegpt, args: [--dp-shard, 2]}", parallel="{dp_shard: 2}"),
     "3:32: --dp-shard is given here and as parallel.dp_shard, expected one of the two"),
    (profile(precision="half"), "4:12: precision: 'half', expected auto or fp32 or bf16 or fp16"),
    (profile(parallel="{sync_interval: 0}"), "4:27: sync_interval: '0', expected a whole number from 1 to 1,000,000"),
    (profile(parallel="{compress: zip}"), "4:22: compress: 'zip', expected none or bf16 or fp16 or powersgd"),
    (profile(parallel="{strategy: fsdp, sync_interval: 8}"),
     "4:43: sync_interval is for copies of the whole model, which fsdp divides, expected ddp without tp, pp, cp"),
    (profile(parallel="{tp: 2, compress: bf16}"),
     "4:29: compress is for copies of the whole model, which tp 2 divides, expected ddp without tp, pp, cp"),
    (profile(parallel="{sync_interval: 8, compress: bf16}"),
     "4:40: compress has nothing to compress with sync_interval, which sends weights, expected one of the two"),
    (profile(job="{script: x}", parallel="{sync_interval: 8}"),
     "4:27: sync_interval applies only to the built-in job, remove it, and use an argument of your own job"),
    (profile(precision="bf61"), "4:12: precision: 'bf61', did you mean 'bf16'?"),
    (profile(metrics="{pattern: '('}"), "4:20: pattern: '(' is not a valid regular expression: missing ), "
                                        "unterminated subpattern at position 0"),
    (profile(metrics="{pattern: loss}"), "4:20: pattern: 'loss' names no metric, "
                                         "expected named groups, like loss=(?P<loss>[0-9.]+)"),
    (profile(metrics="{pattern: " + "x" * 1001 + "}"), "4:20: pattern: a pattern of 1,001 characters, "
                                                       "expected at most 1,000"),
]  # fmt: skip

HOSTS = [
    (None, "1:1: 'hosts' is missing, expected a list, like [node1, node2] or [local]"),
    ("", "2:7: 'hosts' is missing, expected a list, like [node1, node2] or [local]"),
    ("node1", "2:8: hosts: 'node1', expected a list, like [node1, node2]"),
    ("[]", "2:8: hosts: no hosts, expected at least one, like [node1] or [local]"),
    ("[null]", "2:9: hosts: null, expected a host, like node1"),
    ("[[a]]", "2:9: hosts: a list, expected a host, like node1"),
    ("[{name: n}]", f"2:9: 'host' is missing, {HOST}"),
    ("[-oProxyCommand=x]", f"2:9: host: '-oProxyCommand=x' begins with '-', like an option of ssh, {HOST}"),
    ("[-l@n]", f"2:9: host: '-l' begins with '-', like an option of ssh, {HOST}"),
    ("['a b']", f"2:9: host: 'a b' contains ' ', {HOST}"),
    ("['n[1:3]']", "2:9: host: 'n[1:3]' has brackets, as in a list of hosts, "
                   "expected each host by its name"),
    ("['$(id)']", f"2:9: host: '$(id)' contains '$', {HOST}"),
    ('["a\\e[2J"]', f"2:9: host: 'a\\x1b[2J' contains '\\x1b', {HOST}"),
    ("['@n']", f"2:9: host: an empty name, {HOST}"),
    ("[ssh://a:22]", "2:9: host: 'ssh://a:22' begins with ssh://, expected user@host:port without it"),
    ("[a:b:c]", "2:9: host: 'a:b:c' has too many colons, expected host:port, or [IPv6 address]:port"),
    ("['[::1]x']", "2:9: host: '[::1]x' is not a valid address, expected [IPv6 address]:port"),
    ("[n:99999]", "2:9: host: '99999', expected a port from 1 to 65535"),
    ("['n:']", "2:9: host: '', expected a port from 1 to 65535"),
    ("[{host: a@b, user: c}]", "2:9: hosts: the user is given twice, expected it once"),
    ("[me@local]", "2:9: hosts: 'local' is this machine, without SSH, write localhost to reach it by user and port"),
    ("[n, n]", "2:12: the host n is listed twice, first as hosts.0"),
    ("[a@n:1, {host: n, user: a, port: 1}]", "2:16: the host a@n:1 is listed twice, first as hosts.0"),
    ("[n, {host: m, name: n}]", "2:28: two hosts are named 'n', rename one:"),
    ("[{host: n, slots: 2}]", "2:19: unknown key 'slots', did you mean 'num_processes'?"),
    ("[{host: n, restarts: 2}]", "2:19: unknown key 'restarts', it belongs under 'launch'"),
    ("[{host: n, gpus: 2}]", "2:25: gpus: '2', expected a list, like [0, 1]"),
    ("[{host: n, gpus: [0, x]}]", "2:29: gpus: 'x', expected a whole number from 0 to 1,023"),
    ("[{host: n, gpus: [0, 0]}]", "2:25: gpus: a GPU is listed twice, expected each once"),
    ("[{host: n, address: m}]", "2:28: address: 'm', expected an IP address"),
    ("[{host: n, address: 0.0.0.0}]", "2:28: address: 0.0.0.0 is not the address of a machine, "
                                      "expected an IP address"),
    ("[{host: n, interface: 'a b'}]", "2:30: interface: 'a b', expected the name of a network interface, like eth0"),
    ("[{host: n, workdir: x}]", "2:28: workdir: 'x', expected an absolute path or one that starts with ~/"),
]  # fmt: skip

JOBS = [
    ("{}", f"3:6: job: nothing to run is named, {ONE}"),
    ("{script: a, outputs: out}", "3:27: outputs: 'out', expected a list, like [out/]"),
    ("{script: a, outputs: [/etc]}", f"3:28: outputs: '/etc', {BELOW}"),
    ("{script: a, outputs: [a/../..]}", f"3:28: outputs: 'a/../..', {BELOW}"),
    ("{script: a, outputs: [.]}", f"3:28: outputs: '.', {BELOW}"),
    ("{script: a, outputs: [~/x]}", f"3:28: outputs: '~/x', {BELOW}"),
    ("{script: a, module: b}", f"3:6: job: script and module are set, {ONE}"),
    ("train.py", "3:6: job: 'train.py', expected a mapping, like {key: value}"),
    ("{builtin: bytegtp}", "3:16: builtin: 'bytegtp', did you mean 'bytegpt'?"),
    ("{script: ''}", "3:15: script: empty text, expected some"),
    ("{module: a-b}", "3:15: module: 'a-b', expected a module, like package.train"),
    ("{command: []}", "3:16: the command is empty, expected a list of words"),
    ("{command: ls -l}", "3:16: command: 'ls -l', expected a list, like [./train.sh, fast]"),
    ("{command: [ls], args: [x]}", "3:28: the arguments of a command are in its list, move them"),
    ("{script: a, args: -x 3}", "3:24: args: '-x 3', expected a list, like [--steps, \"300\"]"),
    ("{script: a, args: [x, null]}", f"3:28: args: null, {TEXT}"),
    ("{script: a, args: [{b: c}]}", f"3:25: args: a mapping, {TEXT}"),
    ("{script: a, workdir: src}", "3:27: workdir: 'src', expected an absolute path or one that starts with ~/"),
    ("{script: a, args: [x, '--key=${env:KEY}']}", "3:35: a ${env:…} reference in 'job.args.1', "
                                                   "expected only as the value of an env variable"),
]  # fmt: skip

LAUNCHES = [
    ("{launcher: slurm}", "4:20: launcher slurm needs the section slurm, add slurm: {nodes: 2}"),
    ("{launcher: torchrum}", "4:20: launcher: 'torchrum', did you mean 'torchrun'?"),
    ("{backend: ucc}", "4:19: backend: 'ucc', expected auto or nccl or gloo or mpi"),
    (
        "{backend: mpi}",
        "4:19: backend mpi needs one MPI world over all hosts, but launcher is torchrun, "
        "expected launcher: mpirun",
    ),
    ("{ports: 80-90}", f"4:17: ports: '80-90' {PORTS}"),
    ("{ports: [5000, 4000]}", f"4:17: ports: this {PORTS}"),
    ("{ports: [1, 2, 3]}", f"4:17: ports: this {PORTS}"),
    ("{ports: {a: b}}", "4:17: ports: a mapping, expected a list, like [29500, 29599]"),
    ("{ports: 29500}", "4:17: one port, expected two or more: the gang and torch take one each"),
    ("{master: node2}", "4:18: 'node2' is not the first host, expected auto, an IP address or node1, "
                        "where node rank 0 runs"),
    ("{master: nodeX}", "4:18: 'nodeX' is neither an IP address nor a host, expected auto, an IP address or node1, "
                        "where node rank 0 runs"),
    ("{grace: 1m}", "4:17: grace: '1m', expected seconds, from 0 to 604800 (a week)"),
    ("{join_timeout: 0}", "4:24: join_timeout: 0 seconds, expected more than 0"),
    ("{host_timeout: .inf}", "4:24: host_timeout: '.inf', expected seconds, from 0 to 604800 (a week)"),
    ("{restarts: -1}", "4:20: restarts: '-1', expected a whole number from 0 to 1,000"),
    ("{instrument: maybe}", "4:22: instrument: 'maybe', expected true or false"),
    ("{run_dir: runs}", "4:19: run_dir: 'runs', expected an absolute path or one that starts with ~/"),
    ("{resume_args: --resume}", "4:23: resume_args: '--resume', expected a list, like [--resume, auto]"),
    ("{resume_args: [x]}", "4:23: the built-in job resumes automatically, remove it"),
    ("{max_restarts: 1}", "4:10: unknown key 'max_restarts', did you mean 'restarts'?"),
]  # fmt: skip

ENVS = [
    ("[a]", "4:6: env: a list, expected a mapping, like {key: value}"),
    ("{A: }", f"4:9: A: nothing, {TEXT}"),
    ("{A: [b]}", f"4:10: A: a list, {TEXT}"),
    ("{1A: x}", "4:7: '1A' is not a valid variable name, expected letters, digits and _, no digit first"),
    ("{'A=B': x}", "4:7: 'A=B' is not a valid variable name, expected letters, digits and _, no digit first"),
    ("{RANK: 1}", "4:7: 'RANK' is set by disttui for every rank, remove it"),
    ("{MASTER_ADDR: n}", "4:7: 'MASTER_ADDR' is set by disttui for every rank, choose it by launch.master"),
    ("{DISTTUI_TAG: x}", "4:7: 'DISTTUI_TAG' is set by disttui for every rank, remove it"),
    ("{TORCHELASTIC_RUN_ID: x}", "4:7: 'TORCHELASTIC_RUN_ID' is set by disttui for every rank, remove it"),
    ("{CUDA_VISIBLE_DEVICES: 1}", "4:7: CUDA_VISIBLE_DEVICES is set from the GPUs of the host, "
                                  "choose them by gpus: [0, 1]"),
    ("{A: 'x${env:}'}", "4:10: A: 'x${env:}' contains a broken reference, expected ${env:NAME}"),
    ('{"\\e[2J": [a]}', "4:7: '\\x1b[2J' is not a valid variable name, expected letters, digits and _, no digit first\n"
                        f"p:4:16: \\x1b[2J: a list, {TEXT}"),
]  # fmt: skip

YAML = [
    ("", "1:1: the profile is empty, expected keys like 'disttui: 1', 'hosts:'"),
    ("# only a comment\n", "1:1: the profile is empty, expected keys like 'disttui: 1', 'hosts:'"),
    ("- a\n", "1:1: not a mapping, expected keys like 'disttui: 1', 'hosts:'"),
    (profile() + "hosts: [x]\n", "4:1: key 'hosts' is given twice, first on line 2"),
    (profile() + "<<: {a: 1}\n", "4:1: merge keys (<<) are not supported, write the values out, or use an alias (*)"),
    (profile(hosts="[{host: a}, {<<: {host: b}}]"), "2:21: merge keys (<<) are not supported, write the values out, "
                                                    "or use an alias (*)"),
    (profile() + "---\na: 1\n", "4:1: a second document begins, expected one per file"),
    (profile() + "env:\n\tA: 1\n", "5:1: a tab where YAML does not allow one, indent with spaces"),
    (profile() + "env: {A: 1\n", "4:6: not valid YAML: while parsing a flow mapping, expected ',' or '}', "
                                 "but got '<stream end>', close the mapping with }"),
    (profile(hosts="[a"), "2:8: not valid YAML: while parsing a flow sequence, expected ',' or ']', but got ':', "
                          "close the list with ]"),
    (profile(description='"x'), "4:14: not valid YAML: while scanning a quoted scalar, found unexpected end of stream, "
                                "close the quotation marks"),
    (profile(description="@x"), "4:14: not valid YAML: while scanning for the next token, found character '@' that "
                                "cannot start any token, quote the value"),
    (profile(description="a: b"), "4:15: not valid YAML: mapping values are not allowed here, expected one key on a "
                                  "line, and quotes around text with a colon and a space"),
    (profile() + "env\n", "4:1: not valid YAML: while scanning a simple key, could not find expected ':', "
                          "expected key: value"),
    (bytes(range(32)).decode(), "1:1: a NUL byte, and more of the same: not a text file, expected a YAML file"),
    (profile() + "env: *x\n", "4:6: the alias '*x' names no anchor above it, quote a value that begins with * or &"),
    (profile(description="*.bin"), "4:15: not valid YAML: while scanning an alias, expected alphabetic or numeric "
     "character, but found '.', quote a value that begins with * or &"),
    (profile() + "env: &x {a: *x}\n", "4:13: the alias '*x' contains itself"),
    (profile() + "? [a]\n: 1\n", "4:3: a list or mapping as a key, expected text"),
    (profile(description="!!str x"), "4:14: the tag 'tag:yaml.org,2002:str' is not allowed, "
                                     "quote the value to make it text"),
    (profile(description="!!python/object/apply:os.system [id]"),
     "4:14: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed, quote the value to make it text\n"
     f"p:4:14: description: a list, {TEXT}"),
    (profile(description="a\0b"), "4:15: a NUL byte, expected text"),
    (profile(description='"a\n  b\\0"'), "5:4: a NUL character, which no argument or variable can contain, remove it"),
    (profile(description='"x\\ud800"'), "4:16: half of a surrogate pair is not a character"),
    (profile(description="\x1b[1m"), '4:14: a raw control character \\x1b, write "\\x1b" in double quotes'),
    (profile(description="\udc80"), "4:14: half of a surrogate pair is not a character"),
    (profile(description='"\\UFFFFFFFF"'), "4:17: not valid YAML: number out of range in an escape or directive"),
    ("%YAML 2.0\n---\n" + profile(), "1:1: not valid YAML: found incompatible YAML document (version 1.* is required)"),
]  # fmt: skip

UNSEEN = [
    (profile(description='"a\\u202eb"'),
     "4:14: description: 'a\\u202eb' contains the invisible character '\\u202e', remove it"),
    (profile(description="a\u200bb"),
     "4:14: description: 'a\\u200bb' contains the invisible character '\\u200b', remove it"),
    (profile(launch='{run_dir: "/x\\ny"}'), "4:19: run_dir: '/x\\ny' contains a line break, remove it"),
    (profile(hosts="['..']"), f"2:9: host: '..' is not a valid name, {HOST}"),
    (profile(hosts="[{host: a, name: '.'}]"), f"2:25: name: '.' is not a valid name, {HOST}"),
    (profile(hosts="[{host: a, name: ../../x}]"), f"2:25: name: '../../x' contains '/', {HOST}"),
    (profile(on_end="{webhook: 'http://[::1'}"), "4:19: webhook: 'http://[::1', expected http://… or https://…"),
    (profile(job="{script: " + "a" * 5000 + "}"), "3:15: script: 5,000 bytes, expected at most 4,000"),
    (profile(env="{A: " + "a" * 200_000 + "}"), "4:10: A: 200,000 bytes, expected at most 100,000"),
]  # fmt: skip


CASES = [
    *UNSEEN,
    *SCHEMA,
    *((profile(hosts=text), message) for text, message in HOSTS),
    *((profile(job=text), message) for text, message in JOBS),
    *((profile(launch=text), message) for text, message in LAUNCHES),
    *((profile(env=text), message) for text, message in ENVS),
    *YAML,
]


@pytest.mark.parametrize(("text", "message"), CASES, ids=[message for _, message in CASES])
def test_one_thing_wrong(text: str, message: str) -> None:
    assert wrong(text) == f"p:{message}"


def test_errors_in_env_name_their_place() -> None:
    text = profile(hosts="[{host: n, env: {RANK: 1}}]", job="{script: x, env: {1: 2}}")
    assert wrong(text).splitlines() == [
        "p:2:25: 'RANK' is set by disttui for every rank, remove it",
        "p:3:24: '1' is not a valid variable name, expected letters, digits and _, no digit first",
    ]


def test_an_option_given_twice_or_to_nobody() -> None:
    both = "{builtin: bytegpt, args: [--strategy, ddp, --precision=fp32]}"
    assert wrong(profile(job=both, parallel="{strategy: fsdp}", precision="bf16")).splitlines() == [
        "p:3:32: --strategy is given here and as parallel.strategy, expected one of the two",
        "p:3:49: --precision is given here and as precision, expected one of the two",
    ]
    assert parse(profile(job=both, parallel="{strategy: auto}"), "p").job.args[0] == "--strategy"
    assert wrong(profile(job="{script: x}", precision="bf16")) == (
        "p:4:12: precision applies only to the built-in job, remove it, and use an argument of your own job"
    )


def test_all_at_once_in_the_order_of_the_file() -> None:
    text = """\
disttui: 1
foo: 2
hosts: [a, a]
job: {builtin: bytgpt, arg: [1]}
launch:
  restart: 2
  grace: x
env: {A: 1, A: 2}
description: "${env:X}"
"""
    with pytest.raises(ProfileErrors) as caught:
        parse(text, "p", ["launch.graze=1"])
    assert [(problem.line, problem.column) for problem in caught.value.problems] == [
        (0, 0), (2, 1), (3, 12), (4, 16), (4, 24), (6, 3), (7, 10), (8, 13), (9, 15),
    ]  # fmt: skip
    assert str(caught.value).splitlines()[0] == "--set launch.graze=…: unknown key 'graze', did you mean 'grace'?"
    assert str(caught.value).splitlines()[5] == "p:6:3: unknown key 'restart', did you mean 'restarts'?"
    assert caught.value.exit_code == 2


def test_a_thousand_errors_are_not_all_printed() -> None:
    lines = wrong(profile(env="{" + ", ".join(f"{n}: x" for n in range(1000)) + "}")).splitlines()
    assert len(lines) == 51
    assert lines[-1] == "… and 950 more"


def test_a_message_never_steers_the_terminal() -> None:
    message = wrong(profile(hosts='["\\e]0;x\\a\\u202e"]') + '"\\e[2J": 1\n', "\x1b[2J\udc80.yaml")
    assert all(line.isprintable() for line in message.splitlines())
    message.encode()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "2node.yaml").write_text(profile())
    (tmp_path / "latin.yaml").write_bytes(profile().encode() + b"name: caf\xe9\n")
    (tmp_path / "picture.yaml").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (tmp_path / "model.yaml").write_bytes(b"PK\x03\x04\0\0")
    (tmp_path / "wide.yaml").write_bytes(profile().encode("utf-16"))
    (tmp_path / "big.yaml").write_bytes(b"\xe2\x82\xac" * 4_000_000)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    wanted = {
        "zebra": ": file not found",
        "pipe.yaml": ": not a regular file, but profiles are read more than once\n  → Save it in a file.",
        ".": " is a folder\n  → Name a profile in it.",
        "latin.yaml": ":4:10: byte 0xe9 is not UTF-8 text, expected a YAML file",
        "picture.yaml": ":1:1: byte 0x89 is not UTF-8 text, expected a YAML file",
        "model.yaml": ":1:5: a NUL byte, expected text",
        "wide.yaml": ":1:1: UTF-16 text, save the file as UTF-8",
        "/dev/zero": "/dev/zero:1:1: larger than 1 MiB, expected a profile of a few lines",
        "big.yaml": ":1:1: larger than 1 MiB, expected a profile of a few lines",
        "loop.yaml": ": cannot be read: Too many levels of symbolic links",
        "a\0b": ": cannot be read: ",  # the rest is Python's own, which changed in 3.13
    }
    for name, message in wanted.items():
        with pytest.raises(InputError) as caught:
            load(tmp_path / name)
        assert message in str(caught.value), name
