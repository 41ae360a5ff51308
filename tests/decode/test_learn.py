"""Log-probabilities and gradients of the compiled loop against a plain policy, torch and finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import Decision, decisions, instance_and_env, random_scores

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding, Episode, Instance
from gnnsched.collective.decode.learn import (
    ADVANTAGE,
    CHOICE_CLIPPED,
    CHOICE_ENTROPY,
    CHOICE_ENTROPY_SUM,
    CHOICE_WEIGHT,
    CHOICES,
    CLIP,
    FIRST_EPOCH,
    PICK_CLIPPED,
    PICK_ENTROPY,
    PICK_ENTROPY_SUM,
    PICK_WEIGHT,
    PICKS,
    Tape,
)
from gnnsched.collective.decode.problem import NEARNESS_FLOOR
from gnnsched.topology.generators import bcube, random_heterogeneous, star

PLAIN = Decoding(augment=False)
AUGMENTED = Decoding()
NEVER_CLIP = 1e9
SETTING = {
    "advantage": ADVANTAGE,
    "clip": CLIP,
    "pick_weight": PICK_WEIGHT,
    "choice_weight": CHOICE_WEIGHT,
    "pick_entropy": PICK_ENTROPY,
    "choice_entropy": CHOICE_ENTROPY,
    "first_epoch": FIRST_EPOCH,
}


def learned(
    instance: Instance, scores: Scores, decoding: Decoding, episode: Episode, **setting: float
) -> tuple[Tape, Episode]:
    """The tape after a replay from zero gradients; the episode's own tape is left alone."""
    tape = Tape(*(array.copy() for array in episode.tape))
    for array in (tape.d_path, tape.d_chunk, tape.d_chunk_progress, tape.d_attention, tape.debt):
        array[:] = 0.0
    tape.statistic[:] = 0.0
    tape.setting[:] = 0.0
    values = {"advantage": 1.0, "clip": NEVER_CLIP, "pick_weight": 1.0, "choice_weight": 1.0} | setting
    for name, value in values.items():
        tape.setting[SETTING[name]] = value
    return tape, instance.replay(scores, decoding, tape, episode.state.random)


def gradients(tape: Tape) -> list[np.ndarray]:
    return [tape.d_path, tape.d_chunk, tape.d_chunk_progress, tape.d_attention]


def case(seed: int, decoding: Decoding) -> tuple:
    rng = np.random.default_rng(seed)
    topology = random_heterogeneous(seed, 3, 4)
    instance, env = instance_and_env(topology, 1e6, 1 + seed % 2, decoding, rng if seed % 2 else None)
    scores = random_scores(instance, rng, take=1.0)
    return instance, env, scores, instance.decode(scores, decoding, rng, record=True), rng


def moved(scores: Scores, rng: np.random.Generator, by: float) -> Scores:
    """Every entry a little changed, the weights of the attention by a factor."""
    linear = [part + by * rng.normal(size=part.shape) for part in scores[:3]]
    return Scores(*linear, scores.attention * np.exp(by * rng.normal(size=scores.attention.shape)))


def log_softmax(values: np.ndarray) -> np.ndarray:
    shifted = values - values.max()
    return shifted - np.log(np.exp(shifted).sum())


def plain_log_probabilities(scores: Scores, instance: Instance, decision: Decision) -> tuple[float, float]:
    """Of the pick among legal paths and of the choice among its candidates and none."""
    path = decision.path
    order = log_softmax((decision.features * scores.path[decision.legal]).sum(1))
    d = instance.paths.target[path]
    phi = decision.phi.copy()
    near = scores.attention[:, :, d] @ decision.known[:, decision.candidates].astype(float)
    phi[:, 2], phi[:, 4] = near
    phi[:, 3], phi[:, 5] = np.log(NEARNESS_FLOOR + near)
    score = phi @ (scores.chunk[path] + decision.progress * scores.chunk_progress[path])
    choice = log_softmax(np.append(score, 0.0) if decision.idle else score)
    taken = np.flatnonzero(decision.candidates == decision.chunk)
    return (
        float(order[np.flatnonzero(decision.legal == path)[0]]),
        float(choice[taken[0] if len(taken) else -1]),
    )


@pytest.mark.parametrize("seed", range(6))
def test_log_probabilities_are_those_of_a_plain_softmax(seed: int) -> None:
    """Over the legal paths when each is picked, and over its chunks and none."""
    instance, env, scores, episode, _ = case(seed, PLAIN)
    tape, _ = learned(instance, scores, PLAIN, episode)
    plain = np.array(
        [plain_log_probabilities(scores, instance, d) for d in decisions(instance, env, episode)]
    )
    assert len(plain) == len(tape.picks)
    np.testing.assert_allclose(tape.new_pick, plain[:, 0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(tape.new_choice, plain[:, 1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "decoding",
    [PLAIN, AUGMENTED, Decoding(guide=0.5, allow_none=False), Decoding(guide=0.0, window=0.0, floor=2.0)],
)
def test_acting_and_evaluating_agree(seed: int, decoding: Decoding) -> None:
    """Same transfers and same log-probabilities of the choices, whatever was taken back on the way."""
    instance, _, scores, episode, rng = case(seed, decoding)
    tape, again = learned(instance, scores, decoding, episode)
    np.testing.assert_allclose(tape.new_choice, episode.tape.old_choice, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(again.state.arrival, episode.state.arrival)
    assert again.makespan == episode.makespan
    assert tape.statistic[PICKS] == len(tape.picks)
    assert tape.statistic[CHOICES] == len(tape.choices)
    # other scores, same tape: same transfers, other log-probabilities
    tape, again = learned(instance, moved(scores, rng, 0.3), decoding, episode)
    np.testing.assert_array_equal(again.state.arrival, episode.state.arrival)
    if decoding.allow_none:  # otherwise a path with one chunk to carry has no choice
        assert np.abs(tape.new_choice - episode.tape.old_choice).max() > 1e-3
    assert (tape.new_pick <= 1e-12).all()
    assert (tape.new_choice <= 1e-12).all()


@pytest.mark.parametrize("seed", range(6))
def test_moments_of_events_are_those_of_the_plain_loop(seed: int) -> None:
    instance, env, _, episode, _ = case(seed, PLAIN)
    tape = episode.tape
    assert len(tape.event_time) == episode.events
    assert tape.event_time[0] == 0.0
    moments = {}
    for _ in decisions(instance, env, episode):
        moments[env.loop.event] = env.loop.now
    assert len(moments) > 1
    for event, moment in moments.items():
        assert tape.event_time[event - 1] == pytest.approx(moment, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("decoding", [PLAIN, AUGMENTED, Decoding(guide=0.5)])
def test_first_epoch_gradient_is_that_of_finite_differences(seed: int, decoding: Decoding) -> None:
    """Advantage times log-probability plus entropy bonus, each level with its weight, through augmentation."""
    instance, _, scores, episode, rng = case(seed, decoding)
    setting = {
        "advantage": -0.7,
        "pick_weight": 1.3,
        "choice_weight": 0.6,
        "pick_entropy": 0.2,
        "choice_entropy": 0.4,
        "first_epoch": 1.0,
    }
    tape, _ = learned(instance, scores, decoding, episode, **setting)
    np.testing.assert_array_equal(tape.old_pick, tape.new_pick)

    def objective(at: Scores) -> float:
        result, _ = learned(instance, at, decoding, episode)
        return 1.3 * (-0.7 * result.new_pick.sum() + 0.2 * result.statistic[PICK_ENTROPY_SUM]) + 0.6 * (
            -0.7 * result.new_choice.sum() + 0.4 * result.statistic[CHOICE_ENTROPY_SUM]
        )

    for part, gradient in enumerate(gradients(tape)):
        assert np.abs(gradient).max() > 1e-3
        for _ in range(6):
            direction = rng.normal(size=gradient.shape)
            step = 1e-5
            up = Scores(*(p + step * direction if i == part else p for i, p in enumerate(scores)))
            down = Scores(*(p - step * direction if i == part else p for i, p in enumerate(scores)))
            slope = (objective(up) - objective(down)) / (2 * step)
            assert (gradient * direction).sum() == pytest.approx(slope, rel=2e-5, abs=1e-6)


def torch_objective(
    parts: list[torch.Tensor],
    instance: Instance,
    made: list[Decision],
    old: np.ndarray,
    setting: dict[str, float],
) -> torch.Tensor:
    """The clipped surrogate of PPO per level and entropy bonuses, summed over decisions."""
    path_scores, chunk_scores, chunk_progress, attention = parts
    total = torch.zeros((), dtype=torch.float64)

    def level(
        logits: torch.Tensor, taken: int, before: float, weight: float, entropy_weight: float
    ) -> torch.Tensor:
        log_p = torch.log_softmax(logits, 0)
        ratio = torch.exp(log_p[taken] - before)
        clipped = torch.clamp(ratio, 1 - setting["clip"], 1 + setting["clip"])
        advantage = setting["advantage"]
        surrogate = torch.minimum(ratio * advantage, clipped * advantage)
        return weight * (surrogate - entropy_weight * (log_p.exp() * log_p).sum())

    for decision, (old_pick, old_choice) in zip(made, old):
        legal, path = torch.as_tensor(decision.legal), decision.path
        order = (torch.as_tensor(decision.features) * path_scores[legal]).sum(1)
        taken = int(np.flatnonzero(decision.legal == path)[0])
        total = total + level(order, taken, old_pick, setting["pick_weight"], setting["pick_entropy"])
        weights = chunk_scores[path] + decision.progress * chunk_progress[path]
        known = torch.as_tensor(decision.known[:, decision.candidates].astype(float))
        near = attention[:, :, instance.paths.target[path]] @ known
        log_near = torch.log(NEARNESS_FLOOR + near)
        logits = torch.as_tensor(decision.phi) @ weights
        logits = logits + weights[2] * near[0] + weights[3] * log_near[0]
        logits = logits + weights[4] * near[1] + weights[5] * log_near[1]
        if decision.idle:
            logits = torch.cat([logits, torch.zeros(1, dtype=torch.float64)])
        found = np.flatnonzero(decision.candidates == decision.chunk)
        taken = int(found[0]) if len(found) else len(logits) - 1
        total = total + level(logits, taken, old_choice, setting["choice_weight"], setting["choice_entropy"])
    return total


@pytest.mark.parametrize("advantage", [1.7, -0.8])
@pytest.mark.parametrize("clip", [NEVER_CLIP, 0.05])
@pytest.mark.parametrize("seed", range(3))
def test_gradient_is_that_of_torch(seed: int, clip: float, advantage: float) -> None:
    instance, env, scores, episode, rng = case(seed, PLAIN)
    made = list(decisions(instance, env, episode))
    old = np.array([plain_log_probabilities(scores, instance, d) for d in made])
    setting = {
        "advantage": advantage,
        "clip": clip,
        "pick_weight": 0.9,
        "choice_weight": 1.1,
        "pick_entropy": 0.05,
        "choice_entropy": 0.03,
    }
    # the policy has moved since the episode was sampled
    now = moved(scores, rng, 0.1)
    episode.tape.old_pick[:], episode.tape.old_choice[:] = old[:, 0], old[:, 1]
    tape, _ = learned(instance, now, PLAIN, episode, **setting)
    cut = tape.statistic[PICK_CLIPPED] + tape.statistic[CHOICE_CLIPPED]
    assert 0 < cut < 2 * len(made) if clip < 1.0 else cut == 0
    parts = [torch.tensor(part, requires_grad=True) for part in now]
    torch_objective(parts, instance, made, old, setting).backward()
    for part, gradient in zip(parts, gradients(tape)):
        assert part.grad is not None
        assert part.grad.abs().max() > 1e-3
        np.testing.assert_allclose(gradient, part.grad.numpy(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("decoding", "topology", "episodes"),
    [(PLAIN, star([1e9, 1e9, 4e9]), 3000), (AUGMENTED, bcube(2, 1), 2000)],
)
def test_mean_score_function_is_zero(decoding: Decoding, topology: object, episodes: int) -> None:
    """E[d log p] = 0, so with advantage 1 the gradient averages out over episodes of the same policy."""
    instance = Instance(topology, 1e6, 2)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    scores = random_scores(instance, rng, take=1.0, spread=0.7)
    rows = []
    for _ in range(episodes):
        episode = instance.decode(scores, decoding, rng, record=True)
        tape, _ = learned(instance, scores, decoding, episode, first_epoch=1.0)
        rows.append(np.concatenate([gradient.ravel() for gradient in gradients(tape)]))
    samples = np.array(rows)
    error = samples.std(0) / np.sqrt(episodes)
    # an entry that hardly ever differs from 0 has no normal mean
    often = (np.abs(samples) > 1e-12).mean(0) > 0.02
    assert often.sum() > 100
    z = samples.mean(0)[often] / error[often]
    assert np.abs(z).max() < 4.5
    assert (z**2).mean() < 1.6


@pytest.mark.parametrize("decoding", [PLAIN, AUGMENTED])
@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_huge_scores_stay_finite_and_right(decoding: Decoding, scale: float) -> None:
    """Log-probabilities and gradients at logits of +-1e4."""
    instance, env, scores, _, rng = case(2, decoding)
    huge = Scores(*(part * scale for part in scores[:3]), scores.attention)
    episode = instance.decode(huge, decoding, rng, record=True)
    setting = {"pick_entropy": 0.1, "choice_entropy": 0.1, "first_epoch": 1.0}
    tape, _ = learned(instance, huge, decoding, episode, **setting)
    # to the opposite policy the tape is all but impossible
    opposite = Scores(*(-part for part in huge[:3]), scores.attention)
    odd, _ = learned(instance, opposite, decoding, episode, **setting)
    for result in (tape, odd):
        assert all(np.isfinite(gradient).all() for gradient in gradients(result))
        assert np.isfinite(result.new_pick).all()
        assert np.isfinite(result.new_choice).all()
    if decoding is PLAIN:
        for result, at in ((tape, huge), (odd, opposite)):
            env.reset(options={"flows": env.flows})
            plain = np.array(
                [plain_log_probabilities(at, instance, d) for d in decisions(instance, env, episode)]
            )
            np.testing.assert_allclose(result.new_pick, plain[:, 0], rtol=1e-8, atol=1e-8)
            np.testing.assert_allclose(result.new_choice, plain[:, 1], rtol=1e-8, atol=1e-8)


def test_what_was_drawn_more_sharply_is_not_learned_from() -> None:
    """Its gradient would be that of other scores than the policy's."""
    instance, _, scores, episode, _ = case(2, PLAIN)
    with pytest.raises(ValueError, match="sharpness"):
        instance.replay(scores, replace(PLAIN, sharpness=2.0), episode.tape, episode.state.random)
