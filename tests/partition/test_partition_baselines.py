"""Policies without learning, the arrivals that they meet and the figures that they are compared by."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_partition import baseline, episode
from small_jobs import PROFILES, chain, needs_profiles, random_world

from gnnsched.partition import kernel
from gnnsched.partition.baselines import baseline_names, check_baseline, run_baseline
from gnnsched.partition.cases import load_world
from gnnsched.partition.episode import Metrics, Outcome, metrics
from gnnsched.partition.evaluation import Runner, evaluate, policy_names
from gnnsched.partition.network import PartitionPolicy
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.seeds import EVALUATION, LOOKAHEAD, TRAINING, TUNING, VALIDATION, generator
from gnnsched.partition.tuning import EPISODES, tune_rule
from gnnsched.partition.workload import (
    ARRIVALS,
    DISTRIBUTIONS,
    REPLICAS,
    Arrivals,
    beta_distribution,
    draw_arrivals,
)
from gnnsched.partition.world import World, make_world
from gnnsched.topology import InputError


def random_arrivals(rng: np.random.Generator, world: World, count: int = 30) -> Arrivals:
    """So many that the cluster is crowded: a job takes as long as two to ten arrivals."""
    interarrival = float(np.mean(world.tables.sequential) * rng.uniform(0.1, 0.5))
    beta = np.round(rng.uniform(0.1, 1.0, count), 2)
    return Arrivals(rng.integers(len(world.models), size=count), beta, interarrival, count * interarrival)


def random_rule(rng: np.random.Generator, world: World) -> np.ndarray:
    models, known = len(world.models), world.tables.degree
    return np.concatenate(
        (
            rng.integers(len(known), size=models),
            rng.integers(3, size=models),
            rng.integers(world.tables.workers // 2 + 1, size=models),
        )
    )


# Decisions


@pytest.mark.parametrize("name", ["max", "acceptable", "random", "sip_ml", "none", "smallest_fit", "rule"])
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), holding=st.sampled_from(["faithful", "exact"]))
def test_episodes_are_those_of_the_plain_reference(name: str, seed: int, holding: str) -> None:
    rng = np.random.default_rng(seed)
    # A few worlds for many episodes: simulating all jobs on all blocks takes longer than an episode.
    world = random_world(seed % 5, holding)
    arrivals = random_arrivals(rng, world)
    rule = random_rule(rng, world)
    found = run_baseline(world, arrivals, name, np.random.default_rng(seed), rule)
    chance = np.random.default_rng(seed).random(len(arrivals))
    decide = baseline(world, name, rule if name == "rule" else None)
    degree, lasting, holding_of = zip(*episode(world, arrivals, decide, chance))
    assert found.degree.tolist() == list(degree)
    assert found.lasting.tolist() == list(lasting)
    assert found.holding.tolist() == list(holding_of)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_constants_are_those_of_the_plain_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(seed % 5)
    arrivals = random_arrivals(rng, world)
    name = f"constant_{rng.choice(world.tables.degree)}"
    found = run_baseline(world, arrivals, name, rng)
    decided = episode(world, arrivals, baseline(world, name), np.zeros(len(arrivals)))
    assert list(zip(found.degree.tolist(), found.lasting.tolist(), found.holding.tolist())) == decided


def eight_workers() -> World:
    """Eight workers and a job of 8 s, without communication to speak of."""
    return make_world(Ramp(2, 2, 2), [chain([8.0])], 1.0)


def decisions(name: str, beta: list[float], interarrival: float = 1.0) -> list[int]:
    world = eight_workers()
    count = len(beta)
    arrivals = Arrivals(np.zeros(count, np.int64), np.array(beta), interarrival, 100.0)
    return run_baseline(world, arrivals, name, np.random.default_rng(0)).degree.tolist()


def test_published_policies_by_hand() -> None:
    """Eight workers, of which a job of degree 4 holds 4 for 2 s, and so on."""
    assert decisions("max", [1.0, 1.0], 0.5) == [8, 0]
    assert decisions("max", [1.0, 1.0], 1.1) == [8, 8]
    assert decisions("sip_ml", [1.0, 1.0], 0.5) == [8, 0]
    assert decisions("none", [1.0] * 10, 0.1) == [1] * 8 + [0] * 2
    # 1 / 0.5 is 2, 1 / 0.51 below that; 1 / 0.33 above 3, so 4; 1 / 0.25 is 4; 1 / 0.24 above that.
    for beta, degree in (
        (1.0, 1),
        (0.99, 2),
        (0.51, 2),
        (0.5, 2),
        (0.49, 4),
        (0.33, 4),
        (0.25, 4),
        (0.24, 8),
    ):
        assert decisions("acceptable", [beta]) == [degree]
    # Where nothing free is large enough, the largest that is: 4 workers are busy, and 8 are wanted.
    assert decisions("acceptable", [0.3, 0.2], 0.1) == [4, 4]
    # The smallest fit takes two for one half, four for a little less, and nothing where the limit is missed.
    for beta, degree in ((1.0, 1), (0.5, 2), (0.49, 4), (0.2, 8), (0.125, 8), (0.12, 0)):
        assert decisions("smallest_fit", [beta]) == [degree]
    assert decisions("smallest_fit", [0.3, 0.2, 0.5], 0.1) == [4, 0, 2]


def test_a_job_that_misses_its_limit_is_blocked_and_holds_nothing() -> None:
    world = eight_workers()
    arrivals = Arrivals(np.zeros(2, np.int64), np.array([0.9, 1.0]), 0.5, 100.0)
    found = run_baseline(world, arrivals, "none", np.random.default_rng(0))
    assert found.degree.tolist() == [1, 1]
    assert found.lasting.tolist() == [0.0, 8.0]
    assert found.holding.tolist() == [0, 1]


def test_workers_are_free_again_at_the_moment_that_a_job_ends() -> None:
    world = make_world(Ramp(1, 1, 1), [chain([8.0])], 1.0)
    for interarrival, degrees in ((8.0, [1, 1, 1]), (7.9, [1, 0, 1])):
        arrivals = Arrivals(np.zeros(3, np.int64), np.ones(3), interarrival, 100.0)
        assert run_baseline(world, arrivals, "max", np.random.default_rng(0)).degree.tolist() == degrees


def test_names() -> None:
    world = eight_workers()
    named = ["max", "acceptable", "random", "sip_ml", "none", "smallest_fit"]
    assert baseline_names(world) == [*named, "constant_1", "constant_2", "constant_4", "constant_8"]
    assert policy_names(world) == ["learned", *baseline_names(world), "rule"]
    for name in policy_names(world)[1:]:
        check_baseline(name, world)
    for name, said in (
        ("constant_3", "one of constant_1, constant_2"),
        ("constant_" + "9" * 30, "no block of that size"),
        ("maxx", "did you mean max"),
        ("constant", "did you mean constant_4"),
        ("7", "one of"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            check_baseline(name, world)
        assert "\n" not in str(caught.value)


# Published figures


@cache
def published_runner() -> Runner:
    return Runner(load_world("ramp32", PROFILES, ddls_units=True), None)


@needs_profiles
@pytest.mark.parametrize(
    ("policy", "rates"),
    [
        ("max", (0.262, 0.263, 0.267, 0.263)),
        ("acceptable", (0.309, 0.396, 0.307, 0.142)),
        ("random", (0.517, 0.601, 0.505, 0.465)),
    ],
)
def test_published_blocking_rates(policy: str, rates: tuple[float, ...]) -> None:
    """Means over ten episodes; the stored limits are those that match "acceptable" within 0.01."""
    rows = list(evaluate(published_runner(), [policy], DISTRIBUTIONS, 10))
    for name, rate in zip(DISTRIBUTIONS, rates):
        own = [row.metrics.blocking_rate for row in rows if row.distribution == name]
        assert len(own) == 10
        assert np.mean(own) == pytest.approx(rate, abs=0.01 if policy == "acceptable" else 0.02)


@needs_profiles
def test_published_workers_per_accepted_job() -> None:
    """16.10 to 16.13 under max, which GNMT's side blocks are the reason for."""
    for name in DISTRIBUTIONS:
        outcomes = [published_runner().run("max", name, seed)[1] for seed in range(5)]
        held = np.concatenate([own.holding[own.lasting > 0.0] for own in outcomes])
        assert held.mean() == pytest.approx(16.115, abs=0.03)


# Figures of an episode


def test_figures_by_hand() -> None:
    """Two jobs on 8 workers, a second apart, until 10 s; one is not done then, one is refused."""
    world = make_world(Ramp(2, 2, 2), [chain([8.0]), chain([16.0], activation=3.0)], 1.0)
    assert world.tables.bytes.tolist() == [0.0, 2 * 3.0 + 3.0]
    arrivals = Arrivals(np.array([0, 1, 1, 1]), np.ones(4), 2.0, 10.0)
    outcome = Outcome(np.array([1, 2, 0, 4]), np.array([8.0, 8.0, 0.0, 5.0]), np.array([1, 2, 0, 4]))
    # The first ends at 8, the second at 10, just in time; the last one at 11.
    assert metrics(world, arrivals, outcome) == Metrics(
        blocking_rate=0.5,
        acceptance=0.5,
        mean_jct=8.0,
        mean_speedup=(8 / 8 + 16 / 8) / 2,
        # All of the second job's bytes and 4 of 5 s of the last one's.
        throughput=pytest.approx((9.0 + 9.0 * 4 / 5) / 10.0),
        utilisation=pytest.approx((1 * 8 + 2 * 8 + 4 * 4) / (10 * 8)),
        mean_degree=1.5,
    )


def test_figures_of_an_episode_of_refusals() -> None:
    world = eight_workers()
    arrivals = Arrivals(np.zeros(3, np.int64), np.ones(3), 1.0, 2.0)
    assert metrics(world, arrivals, Outcome.empty(3)) == Metrics(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


# Arrivals


def test_limits_have_two_decimals_and_probabilities() -> None:
    moments = {}
    for name in DISTRIBUTIONS:
        value, probability = beta_distribution(name)
        assert value.min() >= 0.1
        assert value.max() <= 1.0
        np.testing.assert_array_equal(value, np.round(value, 2))
        assert (np.diff(value) > 0).all()
        assert (probability >= 0.0).all()
        assert probability.sum() == pytest.approx(1.0, abs=1e-12)
        mean = float(value @ probability)
        central = [float((value - mean) ** k @ probability) for k in (2, 3)]
        moments[name] = (mean, central[0] ** 0.5, central[1] / central[0] ** 1.5)
    value, probability = beta_distribution("A")
    assert value == pytest.approx(np.arange(10, 101) / 100)
    assert probability == pytest.approx(np.full(91, 1 / 91))
    assert moments["A"][:2] == pytest.approx((0.55, 0.2627), abs=1e-4)
    # Skewed draws, scaled by their extremes: tight, middling and loose; they differ from realisation to realisation.
    for name, mean, spread, skew in (
        ("B", 0.307, 0.128, 0.8),
        ("C", 0.462, 0.119, 0.0),
        ("D", 0.725, 0.112, -0.8),
    ):
        assert moments[name][0] == pytest.approx(mean, abs=0.05)
        assert moments[name][1] == pytest.approx(spread, abs=0.03)
        assert moments[name][2] == pytest.approx(skew, abs=0.25)
    with pytest.raises(InputError, match="'E': unknown; one of A, B, C, D"):
        beta_distribution("E")


def test_arrivals_are_drawn_without_replacement() -> None:
    betas = beta_distribution("B")
    five = draw_arrivals(5, betas, np.random.default_rng(0), 1e-3)
    assert len(five) == ARRIVALS == 1001
    # Of 201 copies each, 4 are left over.
    assert sorted(np.bincount(five.model, minlength=5))[0] >= REPLICAS - 4
    assert np.bincount(five.model).max() <= REPLICAS
    assert (five.interarrival, five.horizon) == (1.0, 1000.0)
    assert set(five.beta) <= set(betas.value)
    assert five.beta.mean() == pytest.approx(betas.value @ betas.probability, abs=0.015)
    # An empty pool is filled again.
    long = draw_arrivals(2, betas, np.random.default_rng(0), 2.0, count=5 * REPLICAS, interarrival=7.0)
    for begin in (0, 2 * REPLICAS):
        assert np.bincount(long.model[begin : begin + 2 * REPLICAS]).tolist() == [REPLICAS] * 2
    assert (len(long), long.interarrival, long.horizon) == (5 * REPLICAS, 14.0, (5 * REPLICAS - 1) * 14.0)


def test_same_seed_same_arrivals_whatever_the_policy() -> None:
    runner = Runner(eight_workers(), PartitionPolicy())
    one, other = runner.run("max", "C", 3)[0], runner.run("random", "C", 3)[0]
    np.testing.assert_array_equal(one.model, other.model)
    np.testing.assert_array_equal(one.beta, other.beta)
    assert not np.array_equal(one.beta, runner.arrivals("C", 4).beta)
    first, second = (runner.run("random", "C", 3)[1].degree for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_what_is_tuned_or_trained_on_is_not_evaluated_on() -> None:
    draws = [
        generator(purpose, name, seed).random()
        for purpose in (EVALUATION, LOOKAHEAD, TUNING, TRAINING, VALIDATION)
        for name in DISTRIBUTIONS
        for seed in range(3)
    ]
    assert len(set(draws)) == 5 * 4 * 3


# The tuned rule


@cache
def crowded_world() -> World:
    """Eight workers and two jobs of 4000 and 9000 s at arrivals 1000 s apart."""
    jobs = [chain([30.0, 50.0], 50, "short"), chain([0.0, 90.0, 90.0], 50, "long", activation=1e9)]
    return make_world(Ramp(2, 2, 2), jobs, 1.0)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_tuned_rule_is_no_worse_than_any_constant_where_it_was_tuned(name: str) -> None:
    world = crowded_world()
    betas = beta_distribution(name)
    rule = tune_rule(world, betas, name)
    models, known = len(world.models), len(world.tables.degree)
    assert rule.shape == (3 * models,)
    assert (rule[:models] < known).all()
    assert set(rule[models : 2 * models]) <= {kernel.NOWHERE, kernel.UPWARDS, kernel.ANYWHERE}
    assert (rule[2 * models :] <= world.tables.workers // 2).all()
    np.testing.assert_array_equal(rule, tune_rule(world, betas, name))

    def rate(policy: str) -> float:
        rates = []
        for seed in range(EPISODES):
            arrivals = draw_arrivals(models, betas, generator(TUNING, name, seed), world.time_unit)
            outcome = run_baseline(world, arrivals, policy, np.random.default_rng(0), rule)
            rates.append(metrics(world, arrivals, outcome).blocking_rate)
        return float(np.mean(rates))

    constants = [rate(f"constant_{d}") for d in world.tables.degree.tolist()]
    assert rate("rule") <= min(constants)
    assert rate("rule") <= rate("smallest_fit")


def test_a_rule_needs_its_parameters() -> None:
    arrivals = Arrivals(np.zeros(1, np.int64), np.ones(1), 1.0, 1.0)
    with pytest.raises(ValueError, match="tuned parameters"):
        run_baseline(eight_workers(), arrivals, "rule", np.random.default_rng(0))
