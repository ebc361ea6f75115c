"""Two users edit, save, sync, restore and remove in any order, with and without the network: nothing is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from disttui.runner.library.git import RemoteError, Repository
from tests.unit.library_kit import User, bare

NAMES = ("one", "two")
KEYS = "ABCD"


def text(mark: str) -> str:
    lines = [f"  {key}: {mark}-{key}   # of {key}" for key in KEYS]
    return "\n".join(["disttui: 1", "hosts: [local]", "job: {builtin: bytegpt}", "env:", *lines, ""])


class Story:
    """What two users do, and which of the values that they have written must still be there."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.remote = bare(folder / "hub.git")
        self.away = folder / "away"
        self.users = [User(name, folder, self.remote) for name in ("alice", "bob")]
        self.live: set[str] = set()
        self.number = 0
        for user in self.users:
            user.sync()

    def files(self, user: User) -> list[str]:
        return sorted(path.stem for path in user.library.folder.glob("*.yaml"))

    def values(self, user: User, name: str) -> dict[str, str]:
        lines = (user.read(name) or "").splitlines()
        return {line.split(":")[0].strip(): line.split()[1] for line in lines if line.startswith("  ")}

    def edit(self, user: User) -> None:
        name = self.random.choice(self.files(user) or list(NAMES))
        before = user.read(name)
        if before is None:
            self.number += 1
            user.save(name, text(f"{user.name}-{self.number}"))
            self.live |= set(self.values(user, name).values())
            return
        values = self.values(user, name)
        key = self.random.choice(list(values))
        self.number += 1
        new = f"{user.name}-{key}-{self.number}"
        self.live -= {values[key]}
        self.live.add(new)
        after = before.replace(values[key], new)
        if self.random.random() < 0.3:  # with an editor in the clone
            (user.library.folder / f"{name}.yaml").write_text(after)
        else:
            user.save(name, after)

    def restore(self, user: User) -> None:
        repository = Repository(user.library.folder, user.environ)
        for name in self.random.sample(self.files(user), k=min(1, len(self.files(user)))):
            history = repository.history(f"{name}.yaml")
            if not history:
                return
            blob = repository.files(self.random.choice(history).id).get(f"{name}.yaml")
            content = repository.read([blob.id])[blob.id] if blob else None
            before = self.values(user, name)
            if content is not None:
                user.save(name, content.decode())
                self.live -= set(before.values()) - set(self.values(user, name).values())
                assert user.read(name) == content.decode()

    def remove(self, user: User) -> None:
        for name in self.random.sample(self.files(user), k=min(1, len(self.files(user)))):
            self.live -= set(self.values(user, name).values())
            user.save(name, None)

    def sync(self, user: User) -> None:
        try:
            user.sync()
        except RemoteError:
            assert not self.remote.exists()

    def network(self, _: User) -> None:
        if self.remote.exists():
            self.remote.rename(self.away)
        else:
            self.away.rename(self.remote)


@pytest.mark.git
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, *range(2, 8)))])
def test_nothing_is_lost_in_any_order(seed: int, tmp_path: Path) -> None:
    story = Story(tmp_path, seed)
    does = [story.edit] * 5 + [story.sync] * 3 + [story.restore, story.network]
    if seed % 2:
        does.append(story.remove)
    for _ in range(14):
        story.random.choice(does)(story.random.choice(story.users))
    if not story.remote.exists():
        story.network(story.users[0])
    for user in (*story.users, *story.users):
        user.sync()
    alice, bob = story.users
    assert story.files(alice) == story.files(bob)
    found = set()
    for name in story.files(alice):
        content = alice.read(name)
        assert content == bob.read(name) and "<<<<" not in (content or "")
        found |= set(story.values(alice, name).values())
    assert story.live - found == set()
