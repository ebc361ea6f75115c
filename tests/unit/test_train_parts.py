"""The parts of the built-in job that need no process group: schedule, order of samples, text."""

from __future__ import annotations

import hashlib
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttui.runner.train.batching import BatchPlan, SampleOrder, plan_batches
from disttui.runner.train.layout import RankIdentity
from disttui.runner.train.loop import lr_at, scale_lr
from disttui.runner.train.options import parse
from disttui.runner.train.problem import Problem


def rate(step: int) -> float:
    return lr_at(step, peak=1.0, steps=110, warmup=10, min_ratio=0.1)


def test_lr_warms_up_in_a_line_then_falls_along_a_cosine() -> None:
    assert [rate(step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert rate(10) == 1.0
    assert rate(60) == pytest.approx(0.55)
    assert rate(110) == pytest.approx(0.1)
    assert all(rate(step) > rate(step + 1) for step in range(10, 110))


def test_lr_without_warmup_starts_at_its_peak() -> None:
    assert lr_at(0, peak=2.0, steps=1, warmup=0, min_ratio=0.0) == 2.0


def test_lr_scaling_by_ranks() -> None:
    assert [scale_lr(0.1, rule, 16) for rule in ("none", "sqrt", "linear")] == pytest.approx([0.1, 0.4, 1.6])


def step_of(order: SampleOrder, plan: BatchPlan, samples: int) -> list[list[int]]:
    """Each rank's samples in one step."""
    return [
        [
            sample
            for index in range(plan.accumulate)
            for sample in order.take(plan.start(samples, index, rank), plan.batch_size)
        ]
        for rank in range(plan.dp)
    ]


@given(
    blocks=st.integers(1, 90), batch=st.integers(1, 5), accumulate=st.integers(1, 4), ranks=st.integers(1, 5),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_no_sample_twice_in_an_epoch_over_all_ranks(
    blocks: int, batch: int, accumulate: int, ranks: int, seed: int
) -> None:
    plan = BatchPlan(batch, accumulate, ranks)
    orders = [SampleOrder(range(blocks), seed) for _ in range(ranks)]
    steps = math.ceil(2 * blocks / plan.global_batch)
    seen: list[int] = []
    for step in range(steps):
        shares = [step_of(order, plan, step * plan.global_batch)[rank] for rank, order in enumerate(orders)]
        # Of the ranks' rounds: all of the first, then all of the second, … is the order of positions.
        for index in range(accumulate):
            seen += [sample for share in shares for sample in share[index * batch : (index + 1) * batch]]
    assert sorted(seen[:blocks]) == sorted(seen[blocks : 2 * blocks]) == list(range(blocks))


def test_global_batch_has_the_same_samples_for_any_division() -> None:
    plans = [BatchPlan(16, 1, 1), BatchPlan(2, 8, 1), BatchPlan(4, 1, 4), BatchPlan(2, 4, 2)]
    for samples in (0, 48, 96):
        steps = [sorted(itertools.chain(*step_of(SampleOrder(range(100), 7), plan, samples))) for plan in plans]
        assert all(step == steps[0] for step in steps)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first = SampleOrder(range(50), 1)
    assert first.take(0, 50) != first.take(50, 50)
    assert first.take(0, 50) != SampleOrder(range(50), 2).take(0, 50)
    assert first.take(0, 50) == SampleOrder(range(50), 1).take(0, 50)
    assert [first.epoch(position) for position in (0, 49, 50)] == [0, 0, 1]


def test_batch_sizes_follow_from_a_global_batch() -> None:
    assert plan_batches(None, None, None, 4) == BatchPlan(8, 1, 4)
    assert plan_batches(None, None, 64, 4) == BatchPlan(16, 1, 4)
    assert plan_batches(4, None, 64, 4) == BatchPlan(4, 4, 4)
    assert plan_batches(None, 2, 64, 4) == BatchPlan(8, 2, 4)


@pytest.mark.parametrize(("batch", "accumulate"), [(None, None), (2, None), (None, 2), (5, 1), (100, None)])
def test_a_global_batch_that_cannot_be_divided_is_refused(batch: int | None, accumulate: int | None) -> None:
    with pytest.raises(Problem, match="--global-batch 31 cannot be divided over 2 ranks"):
        plan_batches(batch, accumulate, 31, 2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--steps 0", "--steps: must be at least 1, not 0"),
        ("--lr fast", "--lr: 'fast' is not a number"),
        ("--steps " + "9" * 400, "--steps: must be from 1 to 1e+15, not 999"),
        ("--steps " + "9" * 5000, "--steps: "),
        ("--lr nan", "--lr: must be"),
        ("--lr inf", "--lr: must be"),
        ("--dropout 1", "--dropout: must be from 0 to 0.99"),
        ("--strategy zero", "--strategy: invalid choice: 'zero'"),
        ("--step 3", "--step 3"),
        ("--heads 3", "--width 128 must be a multiple of twice --heads 3"),
        ("--global-batch 8 --lr-scaling sqrt", "--lr-scaling"),
    ],
)
def test_a_bad_option_is_named(arguments: str, named: str) -> None:
    with pytest.raises(Problem) as refused:
        parse(arguments.split())
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_place_is_read_from_the_launcher() -> None:
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert RankIdentity.from_env(env) == RankIdentity(
        rank=3, world_size=4, local_rank=1, local_world_size=2, launched=True
    )
    assert RankIdentity.from_env({}) == RankIdentity()
    with pytest.raises(Problem, match="LOCAL_RANK"):
        RankIdentity.from_env({name: value for name, value in env.items() if name != "LOCAL_RANK"})
    with pytest.raises(Problem, match="must be numbers"):
        RankIdentity.from_env({**env, "WORLD_SIZE": "many"})


@pytest.mark.torch
class TestText:
    """What becomes of --data."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    def test_a_folder_is_its_text_files_in_order(self, tmp_path: Path) -> None:
        from disttui.runner.train.corpus import read_text

        (tmp_path / "sub").mkdir()
        for name, content in {"b.txt": b"B", "a.txt": b"A", "sub/c.txt": b"C", "x.bin": b"\0X", ".git": b"G"}.items():
            (tmp_path / name).write_bytes(content)
        assert read_text(str(tmp_path)).data == b"ABC"

    def test_the_default_corpus_is_the_same_everywhere(self) -> None:
        from disttui.runner.train.corpus import BUILTIN_SHA256, read_text

        text = read_text(None)
        assert (hashlib.sha256(text.data).hexdigest(), len(text.data)) == (BUILTIN_SHA256, 590_169)

    def test_a_damaged_default_corpus_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from disttui.runner.train.corpus import read_text

        monkeypatch.setattr("pkgutil.get_data", lambda *_: b"In the beginning")
        with pytest.raises(Problem, match="damaged"):
            read_text(None)

    def test_missing_data_is_named(self, tmp_path: Path) -> None:
        from disttui.runner.train.corpus import read_text

        with pytest.raises(Problem, match=r"--data .*nothing: No such file"):
            read_text(str(tmp_path / "nothing"))

    @pytest.mark.parametrize(("size", "named"), [(0, "holds no text"), (100, "too small: 100 bytes")])
    def test_too_little_is_refused(self, size: int, named: str) -> None:
        import torch

        from disttui.runner.train.corpus import Corpus

        with pytest.raises(Problem, match=named):
            Corpus(torch.zeros(size, dtype=torch.uint8), context=8).require(12, "a.txt")

    def test_blocks_do_not_overlap_and_targets_are_the_next_bytes(self) -> None:
        import torch

        from disttui.runner.train.corpus import Corpus

        data = torch.arange(201, dtype=torch.uint8)
        corpus = Corpus(data, context=4)
        assert sorted(corpus.train + corpus.validation) == list(range(50))
        assert corpus.validation == [10, 30]
        inputs, targets = corpus.batch([0, 10, 49])
        assert inputs.tolist() == [[0, 1, 2, 3], [40, 41, 42, 43], [196, 197, 198, 199]]
        assert targets.tolist() == [[1, 2, 3, 4], [41, 42, 43, 44], [197, 198, 199, 200]]
