"""The kinds of samples that a learned scorer's plan draws."""

import numpy as np
import pytest
from networks import small_networks, untrained_policy

from gnnsched.collective.baselines import classical_schedule
from gnnsched.collective.decode.decoder import Decoding, Instance
from gnnsched.collective.decode.presets import linear_scores
from gnnsched.planning import schedule_with
from gnnsched.planning.samples import LEARNED_SAMPLES, PACKINGS, kind_of
from gnnsched.topology import Topology
from gnnsched.topology.generators import dgx, dumbbell, star

POLICY = untrained_policy()


def test_the_kinds_come_round_as_often_as_the_packings() -> None:
    """Or a packing that only a shape's sample could have made would be looked for."""
    assert len(LEARNED_SAMPLES) == PACKINGS
    assert kind_of(0) == kind_of(PACKINGS)
    assert kind_of(0) != kind_of(1)


@pytest.mark.parametrize("name", ["policy", "linear"])
def test_a_plan_of_one_sample_draws_the_first_kind(name: str) -> None:
    network = dgx(2, 3)
    one = schedule_with(name, network, 2.0**30, 2, 1, 3, POLICY)
    many = schedule_with(name, network, 2.0**30, 2, 2 * PACKINGS + 3, 3, POLICY)
    assert one.makespans[0] == many.makespans[0]
    np.testing.assert_array_equal(one.singles, one.makespans)
    assert len(many.makespans) == 2 * PACKINGS + 3
    alike = [i for i in range(2 * PACKINGS + 3) if kind_of(i) == kind_of(0)]
    assert 0 < len(alike) < PACKINGS
    np.testing.assert_array_equal(many.singles, many.makespans[alike])
    assert many.schedule.makespan == pytest.approx(many.makespans.min())


@pytest.mark.parametrize("name", ["policy", "linear"])
@pytest.mark.parametrize("network", small_networks())
def test_sixteen_samples_are_never_slower_than_the_ring(network: str, name: str) -> None:
    topology = small_networks()[network]
    for chunks in (1, 4):
        ring = classical_schedule("ring", topology, 2.0**30, chunks).makespan
        made = schedule_with(name, topology, 2.0**30, chunks, 16, 1, POLICY)
        assert made.schedule.makespan <= ring * (1 + 1e-9)


def test_kinds_do_what_they_say() -> None:
    usual = Decoding()
    found = [kind.decoding(usual) for kind in LEARNED_SAMPLES if kind.shape is None]
    assert {decoding.allow_none for decoding in found} == {True, False}
    assert {decoding.window for decoding in found} == {0.0, usual.window}
    assert {bool(np.isfinite(decoding.guide)) for decoding in found} == {True, False}
    assert all(decoding.sample and decoding.sharpness > 1.0 for decoding in found)


@pytest.mark.parametrize(
    "network", [star([1e9, 2e9, 3e9, 4e9]), dumbbell(3), dgx(2, 3)], ids=lambda t: t.name
)
def test_sharper_draws_come_nearer_to_the_best_choice(network: Topology) -> None:
    """At a low sharpness all choices are alike; at a high one each is the best one."""
    instance = Instance(network, 2.0**30, 2)
    scores = linear_scores(instance)
    best = instance.decode(scores, Decoding(sample=False), np.random.default_rng(0)).makespan

    def mean(sharpness: float) -> float:
        decoding = Decoding(sharpness=sharpness)
        return float(
            np.mean([instance.decode(scores, decoding, np.random.default_rng(s)).makespan for s in range(30)])
        )

    assert mean(1e7) == pytest.approx(best, rel=1e-3)
    assert abs(mean(9.0) - best) <= abs(mean(0.1) - best) + 1e-5 * best
