"""The wizard's steps on recorded hosts: what is shown, what is kept, what is written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import Input

from disttui.runner.api.library import read_profile
from disttui.runner.errors import HostError, InputError
from disttui.runner.hosts.discovery import typed_hosts
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.profile.library import EXAMPLES, library_named, profiles_in
from disttui.runner.profile.load import load, parse
from disttui.tui.home.screen import HomeScreen
from disttui.tui.wizard import hosts_screen
from disttui.tui.wizard.dialogs import SaveScreen
from disttui.tui.wizard.draft import Draft, HostCheck, with_choice
from disttui.tui.wizard.hosts import HostTable
from disttui.tui.wizard.job import Field
from tests.files import new_file
from tests.tui.shelf_kit import asked
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import FACTS, HOSTS, facts, record, states, type_text, walk, walked, wizard
from tests.unit.library_kit import User, bare

TWO = {"gpu1": facts("a100x8"), "gpu2": facts("mixed_gpus")}
CPUS = {"node1": facts("cpu_desk"), "node2": facts("cpu_desk", boot_id="other")}


async def test_hosts_are_checked_again_by_a_key(tmp_path: Path) -> None:
    """Something was corrected there: nobody has to go back a step for that."""
    hosts: dict[str, HostFacts | HostCheck] = {**HOSTS, "gpu1": HostCheck("gpu1", "failed", error=InputError("broken"))}
    async with walked(tmp_path, hosts, 1, names=("gpu2",)) as (pilot, opened):
        opened._change(opened._view.draft.with_hosts(("gpu1", "gpu2")))
        opened._go(4)
        await until(pilot, lambda: "broken" in screen_text(pilot.app))
        assert "✗ 1 host cannot be used; r checks again" in screen_text(pilot.app)
        hosts["gpu1"] = HOSTS["gpu1"]
        await press(pilot, "r", shows="✓ enter starts")


async def test_mixed_gpus_and_no_gpu(tmp_path: Path) -> None:
    hosts = {"mixed": facts("mixed_gpus"), "cpu": facts("cpu_desk")}
    async with walked(tmp_path, hosts, 2, (160, 48)) as (pilot, _):
        shown = screen_text(pilot.app)
        assert "RTX 3090" in shown and "none" in shown and "≠" in shown
        await press(pilot, "enter")
        shown = screen_text(pilot.app)
        assert "gloo" in shown and "cpu has no GPU" in shown and "will be idle" in shown


async def test_a_change_shows_its_effect_and_is_kept_between_steps(tmp_path: Path) -> None:
    async with walked(tmp_path, CPUS, 3) as (pilot, opened):
        before = opened._view.planned
        assert before is not None
        await pilot.press("down", "1", "2")
        await until(pilot, lambda: opened._view.draft.data["hosts"][1] == {"host": "node2", "num_processes": 12})
        await pilot.pause()
        cores = before.recommendation.hosts[0].num_processes
        assert f"= {cores + 12} processes" in screen_text(pilot.app)
        await press(pilot, "left", then=lambda: opened._view.draft.data["hosts"][1]["num_processes"] == 11)
        await press(pilot, "enter", then=lambda: opened._at == 3)
        await pilot.press("down")
        args = opened.query_one("#field-args")
        args.focus()
        await pilot.press("end")
        await type_text(pilot, " --lr 1")
        await until(pilot, lambda: opened._view.draft.data["job"]["args"] == ["--steps", "300", "--lr", "1"])
        for step in (2, 1, 0):
            await pilot.press("escape")
            await until(pilot, lambda step=step: opened._at == step)  # type: ignore[misc]
        assert opened._view.draft.hosts == ["node1", "node2"]
        for _ in range(4):
            await press(pilot, "enter")
        await until(pilot, lambda: opened._at == 4)
        data = parse(opened._view.draft.text, "x").as_written()
        assert data["hosts"] == ["node1", {"host": "node2", "num_processes": 11}]
        assert data["job"]["args"][-2:] == ["--lr", "1"]


async def test_the_same_number_for_all_is_written_once(tmp_path: Path) -> None:
    async with walked(tmp_path, CPUS, 3) as (pilot, opened):
        await press(pilot, "3", "down", "3", then=lambda: opened._view.draft.data.get("num_processes") == 3)
        assert opened._view.draft.data["hosts"] == ["node1", "node2"]
        await pilot.press("a")
        await until(
            pilot, lambda: opened._view.draft.data["hosts"] == ["node1", {"host": "node2", "num_processes": "auto"}]
        )
        await press(pilot, "up", "a", then=lambda: "num_processes" not in opened._view.draft.data)
        assert opened._view.draft.data["hosts"] == ["node1", "node2"]
        await pilot.press("tab", "down", "right")
        await until(pilot, lambda: opened._view.draft.data.get("launch") == {"backend": "nccl"})
        assert opened._view.planned is not None and opened._view.planned.errors


async def test_another_kind_of_job_and_back_loses_nothing(tmp_path: Path) -> None:
    async with walked(tmp_path, CPUS, 4) as (pilot, opened):
        await pilot.press("right", "tab")
        await type_text(pilot, "train.py")
        await until(pilot, lambda: opened._view.draft.data["job"] == {"script": "train.py"})
        assert opened._view.draft.data["name"] == "train-2node"
        await press(pilot, "enter", then=lambda: opened._at == 4)
        await pilot.press("escape", "left")
        await until(pilot, lambda: opened._view.draft.data["job"].get("args") == ["--steps", "300"])
        await press(pilot, "right", then=lambda: opened._view.draft.data["job"] == {"script": "train.py"})


async def test_what_cannot_be_read_keeps_one_at_the_job(tmp_path: Path) -> None:
    async with walked(tmp_path, CPUS, 4) as (pilot, opened):
        field = opened.query_one("#field-args")
        field.focus()
        field.value = "--steps 'x"  # type: ignore[attr-defined]
        await pilot.pause()
        assert "no closing quotation" in screen_text(pilot.app)
        await press(pilot, "enter")
        assert opened._at == 3
        field.value = "--steps 3"  # type: ignore[attr-defined]
        await pilot.pause()
        await press(pilot, "enter", then=lambda: opened._at == 4)


async def test_leaving_with_something_unsaved_is_asked(tmp_path: Path) -> None:
    async with walked(tmp_path, CPUS, 1) as (pilot, _):
        for answer in ("n", "y"):
            await asked(pilot, "escape")
            await press(pilot, answer, then=lambda: not pilot.app.screen.is_modal)
            assert isinstance(pilot.app.screen, HomeScreen) == (answer == "y")


async def test_saving_writes_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    async with walked(tmp_path, CPUS, 5) as (pilot, opened):
        await press(pilot, "s", then=lambda: isinstance(pilot.app.screen, SaveScreen))
        await pilot.press("enter")
        path = tmp_path / "config" / "disttui" / "profiles" / "bytegpt-2node.yaml"
        await until(pilot, path.exists)
        await until(pilot, lambda: opened._view.draft.path == path)
        assert path.read_text() == opened._view.draft.text
        assert [host.name for host in load(path).hosts] == ["node1", "node2"]


async def test_editing_keeps_comments_and_shows_what_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, CPUS)
    path = tmp_path / "mine.yaml"
    text = (
        "disttui: 1\nhosts: [node1, node2]   # ours\n\n# how many\nnum_processes: 2   # each\njob: {builtin: bytegpt}\n"
    )
    path.write_text(text)
    async with wizard(tmp_path, profile=path) as (pilot, opened):
        await until(pilot, lambda: opened._at == 4)
        await press(pilot, "escape", "escape", then=lambda: opened._at == 2)
        await press(pilot, "3", "down", "3", "enter", "enter", then=lambda: opened._at == 4)
        await press(pilot, "2")
        shown = screen_text(pilot.app)
        assert "-num_processes: 2   # each" in shown and "+num_processes: 3   # each" in shown
        await press(pilot, "s", then=lambda: isinstance(pilot.app.screen, SaveScreen))
        await press(pilot, "enter", then=lambda: path.read_text() != text)
        assert path.read_text() == text.replace("num_processes: 2", "num_processes: 3")


@pytest.mark.git
async def test_saving_to_a_shared_library_commits_and_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, CPUS)
    text = "disttui: 1\nhosts: [node1, node2]\nnum_processes: 2   # each\njob: {builtin: bytegpt}\n"
    alice = User("alice", tmp_path, bare(tmp_path / "hub.git"))
    alice.sync()
    path = alice.save("two", text).path
    read_profile(str(path), environ=alice.environ).agree(alice.environ)
    async with wizard(tmp_path, profile=path, more=alice.environ) as (pilot, opened):
        await until(pilot, lambda: opened._at == 4)
        alice.edit("two", "[node1", "[node1, node3")
        await press(pilot, "escape", "escape", then=lambda: opened._at == 2)
        await press(pilot, "3", "down", "3", "enter", "enter", then=lambda: opened._at == 4)
        await press(pilot, "s", then=lambda: isinstance(pilot.app.screen, SaveScreen))
        await press(pilot, "enter", then=lambda: "num_processes: 3" in path.read_text())
    assert path.read_text() == text.replace("num_processes: 2", "num_processes: 3").replace("[node1", "[node1, node3")
    assert alice.git("log", "-1", "--format=%s").strip() == "two: num_processes"


@pytest.mark.git
async def test_after_a_conflict_the_users_own_file_is_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, CPUS)
    alice = User("alice", tmp_path, bare(tmp_path / "hub.git"))
    alice.sync()
    text = "disttui: 1\nhosts: [node1, node2]\nnum_processes: 2\njob: {builtin: bytegpt}\n"
    path = alice.save("two", text).path
    read_profile(str(path), environ=alice.environ).agree(alice.environ)
    async with wizard(tmp_path, profile=path, more=alice.environ) as (pilot, opened):
        await until(pilot, lambda: opened._at == 4)
        alice.edit("two", "num_processes: 2", "num_processes: 4")
        await press(pilot, "escape", "escape", then=lambda: opened._at == 2)
        await press(pilot, "3", "down", "3", "enter", "enter", then=lambda: opened._at == 4)
        for count in (3, 1):
            await press(pilot, "s", then=lambda: isinstance(pilot.app.screen, SaveScreen))
            await press(pilot, "enter", then=lambda: pilot.app.screen is opened)
            mine = path.with_name("two@alice.yaml")
            assert opened._view.draft.path == mine and f"num_processes: {count}" in mine.read_text()
            opened._take(opened._view.draft.put(("num_processes",), 1))
            opened._show()
    assert "num_processes: 4" in path.read_text() and len(list(path.parent.glob("*.yaml"))) == 2


def test_a_script_drops_what_the_built_in_job_alone_takes() -> None:
    data = {"disttui": 1, "hosts": ["local"], "job": {"builtin": "bytegpt"}, "precision": "bf16"}
    draft = Draft({**data, "parallel": {"strategy": "fsdp", "tp": 2}})
    assert not draft.problems
    assert not draft.with_job("script", "train.py").problems


def test_another_launcher_drops_values_of_accelerate_only() -> None:
    data = {"disttui": 1, "hosts": ["local"], "job": {"script": "train.py"}, "launch": {"launcher": "accelerate"}}
    draft = Draft({**data, "parallel": {"strategy": "fsdp"}, "precision": "bf16"})
    assert not draft.problems
    assert not with_choice(draft, "launcher", "torchrun").problems
    assert with_choice(draft, "backend", "gloo").data["precision"] == "bf16"


async def test_editing_an_accelerate_job_keeps_parallel_and_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, TWO)
    text = "disttui: 1\nname: mine\nhosts: [gpu1]\njob: {script: train.py}\nlaunch: {launcher: accelerate}\n"
    path = new_file(tmp_path / "mine.yaml", f"{text}parallel: {{strategy: fsdp}}\nprecision: bf16\n")
    builtin = Draft({**parse(path.read_text(), path).as_written(), "job": {"builtin": "bytegpt"}})
    piped = builtin.put(("parallel", "pp"), 2)
    assert not piped.problems and not piped.with_job("script", "train.py").problems
    async with wizard(tmp_path, profile=path) as (pilot, opened):
        await until(pilot, lambda: opened._at == 4)
        await press(pilot, "escape", then=lambda: opened._at == 3)
        opened.query_one("#field-script").focus()
        await pilot.press("home")
        await type_text(pilot, "my")
        await until(pilot, lambda: opened._view.draft.data["job"]["script"] == "mytrain.py")
        kept = opened._view.draft.data
        assert (kept["parallel"], kept["precision"]) == ({"strategy": "fsdp"}, "bf16")
        shown = screen_text(pilot.app)
        assert re.search(r"strategy +◂ fsdp|strategy .*fsdp", shown) and re.search("precision .*bf16", shown), shown


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08[bold red]x[/]\u202eevil\x00"


async def test_no_hostile_byte_reaches_a_strip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = facts("mixed_gpus")
    gpus = tuple(
        replace(gpu, name=EVIL, processes=tuple(replace(one, user=EVIL, command=EVIL) for one in gpu.processes))
        for gpu in good.gpus
    )
    evil = replace(
        good, hostname=EVIL, user=EVIL, gpus=gpus, problems=(EVIL,), cpu=replace(good.cpu, model=EVIL),
        interpreters=tuple(replace(one, version=EVIL, path=EVIL, torch=f"2.6.0{EVIL}") for one in good.interpreters),
        nics=tuple(replace(nic, name=EVIL, addresses=(EVIL, *nic.addresses)) for nic in good.nics),
        workdir=replace(good.workdir, path=EVIL, exists=False),
    )  # fmt: skip
    record(
        monkeypatch,
        {"a": evil, "b": replace(evil, boot_id="b"), "c": HostCheck("c", "failed", error=HostError("c", EVIL, EVIL))},
    )

    def harmless(app: Any) -> None:
        for strip in app.screen._compositor.render_strips(app.size):
            found = re.findall("[\x00-\x1f\x7f-\x9f\u202e]", strip.text)
            assert not found, (strip.text, found)

    async with wizard(tmp_path, size=(160, 48)) as (pilot, opened):
        opened.query_one("#names").focus()
        await type_text(pilot, "a b c")
        await pilot.press("enter", "down", "down", "down", "down")
        for _ in range(3):
            await press(pilot, "up")
            harmless(pilot.app)
        opened._go(1)
        await pilot.pause()
        await press(pilot, "down", "down")
        harmless(pilot.app)
        await press(pilot, "x", then=lambda: opened._view.draft.hosts == ["a", "b"])
        for step in (1, 2, 3, 4):
            opened._go(step)
            await pilot.pause()
            harmless(pilot.app)
            assert "owned" not in screen_text(pilot.app)
        for key in ("2", "3"):
            await press(pilot, key)
            harmless(pilot.app)


async def test_no_torch_on_a_host_and_nccl_without_gpus_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = [{**one, "torch": None, "cuda": None, "nccl": None} for one in _interpreters("cpu_desk")]
    record(monkeypatch, {"ok": facts("cpu_desk"), "bare": facts("cpu_desk", boot_id="other", interpreters=bare)})
    async with wizard(tmp_path, size=(160, 48)) as (pilot, opened):
        await walk(pilot, opened, ["ok", "bare"], 1)
        await until(pilot, lambda: re.search(r"\[x\] +bare +✗ unusable .* no torch in", screen_text(pilot.app)))
        assert re.search(r"\[x\] +ok +✓ ready", screen_text(pilot.app))
        await press(pilot, "enter", then=lambda: opened._at == 1)
        shown = screen_text(pilot.app)
        assert re.search(r"✓ +ok ", shown) and re.search(r"✗ +bare .* none ", shown), shown
        await press(pilot, "down", shows="✗ no torch in")

    record(monkeypatch, CPUS)
    async with wizard(tmp_path, size=(160, 48)) as (pilot, opened):
        await walk(pilot, opened, list(CPUS), 3)
        opened.query_one("#whole-run").focus()
        await press(pilot, "j", "right", then=lambda: re.search(r"backend +✗ nccl", screen_text(pilot.app)))
        assert "✗ node1: backend nccl, but no GPU found" in screen_text(pilot.app)
        await pilot.press("j", "j", "j", "j", "right", "right")
        await until(pilot, lambda: re.search("launcher +accelerate-launch", screen_text(pilot.app)))
        assert opened._view.draft.data["launch"]["launcher"] == "accelerate-launch"


async def test_footer_follows_whether_the_run_can_start(tmp_path: Path) -> None:
    async with walked(tmp_path, HOSTS, 5, names=["gpu1"]) as (pilot, opened):
        opened.post_message(hosts_screen.HostChanged(HostCheck("gpu1", "probing")))
        await until(pilot, lambda: "enter launch" not in screen_text(pilot.app))
        opened.post_message(hosts_screen.HostChanged(HostCheck("gpu1", "ready", facts("a100x8"))))
        await until(pilot, lambda: "enter launch" in screen_text(pilot.app))


async def test_an_undecided_plan_says_why_and_offers_no_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, HOSTS)
    profile = new_file(tmp_path / "mine.yaml", "disttui: 1\nhosts: [gpu1, down, silent]\njob: {builtin: bytegpt}\n")
    async with wizard(tmp_path, profile=profile) as (pilot, opened):
        await until(pilot, lambda: opened._at == 4 and len(states(opened)) == 3)
        await pilot.press("escape", "escape")
        await until(pilot, lambda: opened._at == 2 and "not decided yet" in screen_text(pilot.app))
        await until(pilot, lambda: "✗ down cannot be used: see step 2" in screen_text(pilot.app))
        assert "silent has not answered yet" in screen_text(pilot.app)
        assert screen_text(pilot.app).startswith(" mine  ")
        assert "← less" not in screen_text(pilot.app) and "edit host" not in screen_text(pilot.app)


async def test_a_host_that_fails_after_planning_cannot_be_edited(tmp_path: Path) -> None:
    async with walked(tmp_path, HOSTS, 3, names=["gpu1"]) as (pilot, opened):
        await until(pilot, lambda: "edit host" in screen_text(pilot.app))
        down = HOSTS["down"]
        assert isinstance(down, HostCheck)
        opened.post_message(hosts_screen.HostChanged(replace(down, name="gpu1")))
        await until(pilot, lambda: "✗ gpu1 cannot be used: see step 2" in screen_text(pilot.app))
        assert "← less" not in screen_text(pilot.app) and "edit host" not in screen_text(pilot.app)
        await pilot.press("e")
        assert pilot.app.screen is opened


def _interpreters(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FACTS / f"{name}.json").read_text())["interpreters"]
    return found


def _crowd() -> dict[str, Any]:
    refused = {f"n{at}": HostError(f"n{at}", f"10.0.0.{at}:22 refuses the connection", "Is it on?") for at in range(9)}
    return {"ok": facts("cpu_desk"), **{name: HostCheck(name, "failed", error=why) for name, why in refused.items()}}


async def test_three_pasted_lines_add_three_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = _crowd()
    record(monkeypatch, hosts)
    monkeypatch.setattr(hosts_screen, "find_all", lambda *_: [typed_hosts("local n7 n8")])
    async with wizard(tmp_path) as (pilot, opened):
        await until(pilot, lambda: "n8" in screen_text(pilot.app))
        assert opened.focused is opened.query_one("#names")
        pilot.app.post_message(events.Paste("ok\nn1\nn2\n"))
        await until(pilot, lambda: "enter adds ok, n1, n2" in screen_text(pilot.app))
        await press(pilot, "enter", then=lambda: opened._view.draft.hosts == ["ok", "n1", "n2"])


async def test_a_failed_sandbox_shows_its_cause_and_the_retry_key(tmp_path: Path) -> None:
    error = HostError("node2", "no port of the loopback is free", "End what uses them.")
    ready = HostCheck("node1", "ready", facts("a100x8"))
    async with walked(
        tmp_path, {"node1": ready, "node2": HostCheck("node2", "failed", error=error)}, 1, names=["sandbox"]
    ) as (pilot, _):
        await until(pilot, lambda: "tab r retries" in screen_text(pilot.app))
        assert screen_text(pilot.app).count("no port of the loopback is free") == 2, "in the list and in the notes"
        await press(pilot, "tab", "G", shows="\n r retries")
        assert "✗ node2: no port of the loopback is free" in screen_text(pilot.app)
        assert "→ End what uses them." in screen_text(pilot.app)


async def test_unusable_hosts_are_folded_and_removed_by_one_key(tmp_path: Path) -> None:
    hosts = _crowd()
    async with walked(tmp_path, hosts, 1) as (pilot, opened):
        await until(pilot, lambda: " (9 hosts): n0, n1, n2, n3, n4, n5 and 3 more" in screen_text(pilot.app))
        assert "tab X removes 9 unusable" in screen_text(pilot.app)
        await press(pilot, "tab", "X", then=lambda: opened._view.draft.hosts == ["ok"])
        assert "1 host ticked, 1 ready" in screen_text(pilot.app)


async def test_if_all_hosts_fail_each_keeps_its_reason(tmp_path: Path) -> None:
    down = {name: HostCheck(name, "failed", error=HostError(name, f"{name} is off")) for name in ("one", "two")}
    async with walked(tmp_path, down, 1, (100, 30)) as (pilot, opened):
        await until(pilot, lambda: "2 hosts ticked, 0 ready" in screen_text(pilot.app))
        assert "unusable" not in screen_text(pilot.app)
        await press(pilot, "down", "x", "down", "x", then=lambda: opened.query_one(HostTable).key == "two")
        await pilot.pause()
        assert "unusable" not in screen_text(pilot.app)
        assert states(opened) == {"one": "failed", "two": "failed"}, "they are not pending: there is nothing to cancel"
        assert screen_text(pilot.app).count("r retries") == 1
        await press(pilot, "space", "up", "space", then=lambda: not opened._view.draft.hosts)
        assert "Tick hosts with space." in screen_text(pilot.app), "the cursor is in the list already"


async def test_a_wrong_path_stays_in_its_line_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").touch()
    async with walked(tmp_path, CPUS, 5, (80, 24)) as (pilot, _):
        await press(pilot, "s", then=lambda: isinstance(pilot.app.screen, SaveScreen) and pilot.app.screen.focused)
        line = pilot.app.screen.query_one(Input)
        for path, said in (
            ("~/no\u00a0such/x.txt", "a profile's file ends in .yaml"),
            ("~nobody-here/x.yaml", "no such user: nobody-here"),
            ("~", "this is a folder; name a file in it"),
            ("", "enter the path of a file"),
            ("~/file/x.yaml", "a part of this path is not a folder"),
        ):
            line.value = path
            await pilot.press("enter")
            await until(pilot, lambda said=said: said in " ".join(screen_text(pilot.app).split()))  # type: ignore[misc]
            assert isinstance(pilot.app.screen, SaveScreen) and line.value == path
            await press(pilot, "a", then=lambda: "✗" not in screen_text(pilot.app))


async def test_what_an_empty_line_offers_is_not_taken_for_a_value(tmp_path: Path) -> None:
    async with walked(tmp_path, CPUS, 4, (80, 24)) as (pilot, opened):
        lines = [line for line in opened.query(Field) if line.placeholder]
        assert len(lines) >= 9
        assert all(line.placeholder.startswith(("e.g. ", "when empty: ")) for line in lines)
        assert lines[0].get_component_rich_style("input--placeholder").italic
        assert "folder       when empty: ~" in screen_text(pilot.app).replace("   when", " when")


async def test_an_example_is_opened_without_its_placeholder_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, HOSTS)
    (example,) = (one.path for one in profiles_in(library_named(EXAMPLES, {})) if one.path.stem == "2node-fsdp")
    async with wizard(tmp_path, profile=example) as (pilot, opened):
        await until(pilot, lambda: "step 1 of 5" in screen_text(pilot.app))
        assert opened._view.draft.hosts == [] and "node1" not in screen_text(pilot.app)
        await walk(pilot, opened, ["gpu1", "gpu2"], 5)
        data = opened._view.draft.data
        assert (data["hosts"], data["parallel"], data["name"]) == (
            ["gpu1", "gpu2"],
            {"strategy": "fsdp"},
            "bytegpt-2node",
        )
        assert opened._view.draft.path is None
