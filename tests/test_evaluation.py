from dataclasses import replace

import numpy as np
import pytest
import torch

import gnnsched.evaluation
from gnnsched.collective.schedule import Schedule, Transfers
from gnnsched.evaluation import Row, evaluate
from gnnsched.models.policy import Policy
from gnnsched.planning import SCHEDULERS, Sampled, schedule_with
from gnnsched.topology import InputError
from gnnsched.topology.generators import bcube, hub, star


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    return Policy()


def without_last(schedule: Schedule) -> Schedule:
    t = schedule.transfers
    cut = t.path_start[-2]
    kept = Transfers(
        *(column[:-1] for column in (t.phase, t.chunk, t.source, t.target, t.path_start)),
        t.path_links[:cut],
        *(column[:-1] for column in (t.rate, t.start, t.end)),
    )
    return replace(schedule, transfers=kept)


def test_closed_forms_on_a_star() -> None:
    """4 equal NICs, no latency: the ring is at the bound 2(N-1)/N, the parameter server takes 2(N-1)."""
    rows = list(evaluate([star([1e9] * 4, latency=0.0)], ("ring", "parameter_server"), (2,), 1e9, seeds=1))
    ring, server = rows
    assert ring.bound_s == pytest.approx(1.5)
    assert ring.best_ratio == pytest.approx(1.0)
    assert ring.makespan_s == pytest.approx(1.5)
    assert server.best_ratio == pytest.approx(4.0)
    assert server.sample_mean_ratio == server.best_ratio


def test_a_row_for_every_network_count_scheduler_and_seed(policy: Policy) -> None:
    networks = [bcube(2, 1), hub(2)]
    rows = list(evaluate(networks, SCHEDULERS, (1, 2), 1e6, samples=2, seeds=2, policy=policy))
    keys = [(row.topology, row.chunks_per_server, row.scheduler, row.seed) for row in rows]
    wanted = [
        (network.name, count, name, seed)
        for network in networks
        for count in (1, 2)
        for name in SCHEDULERS
        for seed in (0, 1)
    ]
    assert keys == wanted
    for row in rows:
        assert row.best_ratio is not None
        assert row.sample_mean_ratio is not None
        assert row.best_ratio == pytest.approx(row.makespan_s / row.bound_s)
        # rounding of the sum of two halves aside
        assert row.best_ratio <= row.sample_mean_ratio * (1 + 1e-12)
        assert row.planned_by == row.scheduler
        assert row.plan_s >= 0.0
        assert not row.ladder


def test_seeds_draw_different_plans_and_repeat_the_same() -> None:
    network = star([4e9, 2e9, 1e9, 1e9, 3e9])

    def drawn() -> list[tuple[int, float | None, float]]:
        rows = evaluate([network], ("random", "ring"), (4,), 1e8, samples=2, seeds=3)
        return [(row.seed, row.sample_mean_ratio, row.makespan_s) for row in rows]

    rows = drawn()
    assert rows == drawn()
    assert len({mean for _, mean, _ in rows[:3]}) > 1
    assert len({makespan for _, _, makespan in rows[3:]}) == 1


def test_the_ladder_and_the_front_door(policy: Policy) -> None:
    fixed, ladder, alone = (
        next(iter(evaluate([bcube(2, 1)], (name,), (count,), 2**30, samples=2, seeds=1, policy=policy)))
        for name, count in (("auto", 2), ("auto", None), ("greedy_augmented", None))
    )
    assert (fixed.chunks_per_server, fixed.ladder) == (2, False)
    assert fixed.planned_by in ("policy", "greedy_augmented", "trees_augmented")
    for row in (ladder, alone):
        assert row.ladder
        assert row.best_ratio is not None
        assert row.best_ratio <= 1.005
        assert row.sample_mean_ratio is None
    assert alone.planned_by == alone.scheduler == "greedy_augmented"


def test_one_server_has_no_ratio() -> None:
    (row,) = evaluate([hub(0)], ("greedy",), (1,), 1e6, seeds=1)
    assert (row.makespan_s, row.bound_s) == (0.0, 0.0)
    assert row.best_ratio is row.sample_mean_ratio is None


def test_rows_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    def counting(name: str, *rest: object) -> Sampled:
        planned.append(name)
        return schedule_with(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(gnnsched.evaluation, "schedule_with", counting)
    rows = evaluate([hub(2)], ("ring", "greedy"), (1,), 1e6, seeds=1)
    assert planned == []
    assert isinstance(next(rows), Row)
    assert planned == ["ring"]


def test_a_wrong_schedule_is_never_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: object) -> Sampled:
        sampled = schedule_with(*arguments)  # type: ignore[arg-type]
        return Sampled(without_last(sampled.schedule), np.zeros(1), np.zeros(1))

    monkeypatch.setattr(gnnsched.evaluation, "schedule_with", wrong)
    with pytest.raises(RuntimeError, match="hub_2: ring made a wrong schedule: chunk"):
        list(evaluate([hub(2)], ("ring",), (1,), 1e6, seeds=1))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"schedulers": ("rings",)}, "scheduler 'rings'"),
        ({"schedulers": ("ring",), "samples": 0}, "samples: 0"),
        ({"schedulers": ("ring",), "seeds": 0}, "seeds: 0"),
        ({"schedulers": ("ring",), "chunks_per_server": (4, 0)}, "chunks per server: 0"),
        ({"schedulers": ("ring",), "time_limit": float("nan")}, "time limit: nan"),
    ],
)
def test_bad_arguments_are_refused_before_planning(arguments: dict, named: str) -> None:
    with pytest.raises(InputError, match=named):
        evaluate([hub(2)], **arguments)
