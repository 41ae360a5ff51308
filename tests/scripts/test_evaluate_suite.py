"""The evaluation's arithmetic, its bars, what it renders and what it measures again."""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from evaluation_parts import ablation, held_out, sizes, suite, training_seeds
from evaluation_parts.cases import CHUNKS, KINDS, RULES, Case, cases_of, policy_scorer, row_of
from evaluation_parts.markdown import between_markers
from evaluation_parts.options import Options, shipped
from evaluation_parts.results import Results
from evaluation_parts.statistics import geometric_mean, t_interval

from gnnsched.collective.baselines import CLASSICAL
from gnnsched.evaluation import Row
from gnnsched.models.policy import Policy
from gnnsched.planning import SCHEDULERS, schedule_with
from gnnsched.topology import InputError
from gnnsched.topology.generators import dgx
from gnnsched.training.checkpoint import describe_checkpoint


def test_the_interval_in_closed_form() -> None:
    """Student's quantile is tan(pi (p - 1/2)) for one degree of freedom, (2p - 1) / sqrt(2p(1 - p)) for two."""
    quantile = math.tan(math.pi * 0.475)
    assert t_interval([1.0, 4.0]) == pytest.approx((2.5 - 1.5 * quantile, 2.5 + 1.5 * quantile))
    quantile = 0.95 / math.sqrt(2 * 0.975 * 0.025)
    half = quantile * math.sqrt(3.0) / math.sqrt(3)  # 1, 1, 4 have a sample variance of 3
    assert t_interval([1.0, 1.0, 4.0]) == pytest.approx((2.0 - half, 2.0 + half))
    assert t_interval([0.7]) is None


def test_the_geometric_mean() -> None:
    assert geometric_mean([1.0, 2.0, 4.0]) == pytest.approx(2.0)


def suite_results(tmp_path: Path) -> Results:
    """A suite where everything is well within its bars."""
    results = Results(tmp_path / "suite.json", "command", suite.settings(Options()))
    good = {"seed": 0, "sample_mean_ratio": 1.001, "best_ratio": 1.0, "makespan_s": 1.0, "plan_s": 0.1}
    for name in ("dcell_4_1", "jellyfish_20x4x2", "dgx_2x8", "dumbbell_8_8", "star_4x10_4x1"):
        results.about(name, servers=16, bound_s=1.0, lp_bound_s=1.0, lp_note=None)
        for label in (*SCHEDULERS, "auto", "policy, BCube only"):
            worse = {"sample_mean_ratio": 1.5, "best_ratio": 1.5} if label in (*CLASSICAL, "greedy") else {}
            for chunks in (1, 4):
                results.add(name, label, {**good, **worse, "chunks_per_server": chunks, "planned_by": label})
    return results


@pytest.mark.parametrize(
    ("name", "label", "chunks", "column", "value", "said"),
    [
        ("dcell_4_1", "policy", 4, "best_ratio", 1.0071, "policy on dcell_4_1, 4 chunk(s) per server, best"),
        (
            "dcell_4_1",
            "policy",
            4,
            "sample_mean_ratio",
            1.04,
            "policy on dcell_4_1, 4 chunk(s) per server, single",
        ),
        ("dgx_2x8", "policy", 1, "best_ratio", 1.39, "policy on dgx_2x8, 1 chunk(s)"),
        ("dumbbell_8_8", "auto", 4, "best_ratio", 1.03, "auto on dumbbell_8_8: 1.0150, above 1.01"),
        ("dcell_4_1", "auto", 4, "plan_s", 2.1, "auto on dcell_4_1: planned for 2.1 s"),
        ("dcell_4_1", "ring", 4, "best_ratio", 0.9, "policy, BCube only does not beat ring on dcell_4_1"),
        (
            "jellyfish_20x4x2",
            "policy",
            4,
            "best_ratio",
            0.97,
            "policy, BCube only on jellyfish_20x4x2: 1.0000, more",
        ),
    ],
)
def test_a_miss_on_the_suite_is_said(
    tmp_path: Path, name: str, label: str, chunks: int, column: str, value: float, said: str
) -> None:
    results = suite_results(tmp_path)
    assert suite.check(results) == []
    (row,) = results.of(name, label, chunks_per_server=chunks)
    row[column] = value
    (miss,) = suite.check(results)
    assert miss.startswith(said)


def test_bars_that_do_not_bind(tmp_path: Path) -> None:
    """No bar on the star; one chunk on uniform networks is free; two seconds hold to 64 servers."""
    results = suite_results(tmp_path)
    for name, label, chunks in (("star_4x10_4x1", "policy", 4), ("dcell_4_1", "policy", 1)):
        results.of(name, label, chunks_per_server=chunks)[0]["best_ratio"] = 3.0
    results.about("jellyfish_20x4x2", servers=120)
    results.of("jellyfish_20x4x2", "auto")[0]["plan_s"] = 9.0
    assert suite.check(results) == []


def held_out_results(tmp_path: Path, saving: float = 0.1) -> Results:
    """Two networks where the policy of each training seed saves about ``saving`` on everything else."""
    results = Results(tmp_path / "held_out.json", "command", held_out.settings(Options()))
    for name, scale in (("one", 1.0), ("two", 2.0)):
        values = {"greedy_augmented": 1.3 * scale, "trees_augmented": 1.3, "linear": min(1.3, 1.3 * scale)}
        values |= {f"{held_out.SEED}{s}": 1.3 * (1 - saving + 1e-4 * (s - 2)) for s in range(5)}
        for label, value in values.items():
            for kind in KINDS:
                for chunks in CHUNKS:
                    row = {"kind": kind, "chunks_per_server": chunks}
                    results.add(name, label, {**row, "sample_mean_ratio": value, "best_ratio": value})
        for label in ("auto", "policy", *held_out.RIVALS):
            ratio = 1.0 if label in ("auto", "policy") else 1.2
            results.add(name, label, {"kind": "allreduce", "chunks_per_server": 4, "best_ratio": ratio})
    return results


def test_savings_and_misses_on_held_out_networks(tmp_path: Path) -> None:
    results = held_out_results(tmp_path)
    rival = held_out.better_rule(results, "best_ratio", "flows", 2)
    assert rival == pytest.approx({"one": 1.3, "two": 1.3})
    found = held_out.savings(results, "best_ratio", "flows", 2, rival)
    assert found == pytest.approx([0.1 - 1e-4 * (s - 2) for s in range(5)])
    assert held_out.check(results) == []

    few = held_out_results(tmp_path, saving=0.02)
    misses = held_out.check(few)
    assert len(misses) == 2 * len(KINDS) * len(CHUNKS)
    assert all("on the better rule, not 3% beyond doubt" in miss for miss in misses)

    results.of("two", "ring")[0]["best_ratio"] = 0.99
    results.of("two", "auto")[0]["best_ratio"] = 1.03
    misses = held_out.check(results)
    assert "auto on the held-out networks: 1.0150 on the mean, above 1.01" in misses
    assert any(miss.startswith("auto does not beat ring on held-out two") for miss in misses)
    # 1 % above a baseline within 2 % of the bound counts as a tie, 1.01 % does not.
    assert any(miss.startswith("policy does not beat ring") for miss in misses)
    results.of("two", "ring")[0]["best_ratio"] = 1.0 / 1.0099
    assert not any(miss.startswith("policy") for miss in held_out.check(results))


def test_doubt_is_a_miss(tmp_path: Path) -> None:
    results = held_out_results(tmp_path)
    for row in results.of(label=f"{held_out.SEED}0", kind="small", chunks_per_server=1):
        row["best_ratio"] = 1.6
    misses = held_out.check(results)
    assert len(misses) == 2
    assert all(miss.startswith("held out, small, 1 chunk(s), best of 16") for miss in misses)


def sizes_results(tmp_path: Path) -> Results:
    """auto takes 1 s at every size, sharded PS 2 s, the others 3 s."""
    results = Results(tmp_path / "sizes.json", "command", sizes.settings(Options()))
    for name in ("torus_4x4", "dgx_2x8"):
        results.about(name, servers=16, bound_busbw=[size / 0.9 for size in sizes.SIZES])
        for size in sizes.SIZES:
            for label in ("auto", *CLASSICAL):
                seconds = {"auto": 1.0, "sharded_parameter_server": 2.0}.get(label, 3.0)
                row = {"message_bytes": size, "chunks_per_server": 1, "makespan_s": seconds, "ratio": 1.01}
                results.add(name, label, {**row, "busbw": size / seconds, "planned_by": "policy"})
    return results


def test_misses_over_message_sizes(tmp_path: Path) -> None:
    results = sizes_results(tmp_path)
    assert sizes.check(results) == []
    assert sizes.best_single(results) == "sharded_parameter_server"
    assert "| all | 2.00 |" in sizes.tables(results)["sizes"]
    (ring,) = results.of("dgx_2x8", "ring", message_bytes=2**14)
    ring["makespan_s"] = 0.5
    assert sizes.check(results) == ["auto on dgx_2x8, 16 KiB: 2.0000 times the time of ring"]
    assert "| 16 KiB | 2.00 | 0.500 (ring on dgx_2x8) |" in sizes.tables(results)["sizes"]
    ring["makespan_s"] = 3.0
    for size, ratio in ((2**20, 1.26), (2**22, 5.0), (2**24, 1.03)):
        results.of("torus_4x4", "auto", message_bytes=size)[0]["ratio"] = ratio
        results.of("dgx_2x8", "auto", message_bytes=size)[0]["ratio"] = 5.0
    assert sizes.check(results) == [
        "auto on torus_4x4, 1 MiB: 1.2600 of the bound, above 1.25",
        "auto on torus_4x4, 16 MiB: 1.0300 of the bound, above 1.02",
    ]


def test_an_ablation_that_is_as_good_is_said(tmp_path: Path) -> None:
    """Compared over the same training seeds; what has none, with the shipped checkpoint's."""
    results = Results(tmp_path / "ablation.json", "command", ablation.settings(Options()))
    shipped_seed = str(describe_checkpoint(shipped("default"))["seed"])
    labels = {
        f"default, training seed {shipped_seed}": 1.1,
        "default, training seed 8": 1.3,
        "default, training seed 9": 1.0,
        "untrained": 1.2,
        "no_flows, training seed 8": 1.29,
        "alternating, training seed 8": 1.29,
        "alternating, training seed 9": 1.02,
        "linear": 1.0,
    }
    for label, ratio in labels.items():
        for kind in KINDS:
            for chunks in CHUNKS:
                row = {"kind": kind, "chunks_per_server": chunks, "sample_mean_ratio": ratio}
                results.add("one", label, {**row, "best_ratio": ratio})
    assert ablation.check(results) == ["ablation no_flows: as good as the policy"]
    made = ablation.tables(results)["ablation"]
    assert "| untrained weights | 1.200 / 1.200 |" in made
    assert "in turns instead of jointly, seeds 8 9 | 1.147 / 1.147 |" in made
    # 1.2 over 1.1, and the root of 1.29 * 1.02 over that of 1.3 * 1.0
    assert "| +9.1% / +9.1% |" in made
    assert "| +0.6% / +0.6% |" in made


def test_long_training_is_said(tmp_path: Path) -> None:
    results = Results(tmp_path / "training_seeds.json", "command")
    for seed, minutes in (("0", 60.0), ("1", 61.0)):
        row = {
            "training_minutes": minutes,
            "training_steps": 2e6,
            "sample_mean_ratio": 1.1,
            "chunks_per_server": 4,
        }
        results.add("dgx_2x8", seed, {**row, "best_ratio": 1.0 + minutes / 1000})
    few, long = training_seeds.check(results)
    assert few.startswith("training seeds: 2 measured")
    assert long == "training seed 1: trained for 61 minutes, more than 60"
    assert (
        "| dgx_2x8, 4 | 1.060 (1.100) | 1.061 (1.100) | 0.001 |"
        in training_seeds.tables(results)["training_seeds"]
    )


def test_only_what_is_between_the_markers_changes() -> None:
    text = "# a\n<!-- one:begin -->\nold\n<!-- one:end -->\nb | c\n<!-- two:begin --><!-- two:end -->\n\nend"
    new = between_markers(text, {"one": "| x |\n| y |"})
    assert new == text.replace("\nold\n", "\n| x |\n| y |\n")
    assert between_markers(new, {"one": "old"}) == text
    assert between_markers(text, {}) == text
    for broken in (text.replace("one:end", "other"), "<!-- one:end --><!-- one:begin -->", text + text):
        with pytest.raises(InputError, match="one:begin"):
            between_markers(broken, {"one": "x"})


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Schedulers that the suite part asked for; their rows are made up."""
    asked: list[str] = []

    def pretended(topologies: Any, names: Any, chunks: Any, *rest: Any) -> Iterator[Row]:
        asked.extend(names)
        for name in names:
            for count in chunks:
                yield Row(
                    topologies[0].name, name, count or 8, 0, 1.0, 1.0, 1.0, 1.0, 0.1, name, count is None
                )

    monkeypatch.setattr(suite, "evaluate", pretended)
    monkeypatch.setattr(suite, "load_policy", lambda folder: None)
    return asked


def test_resume_measures_what_is_missing(tmp_path: Path, planned: list[str]) -> None:
    path, options = tmp_path / "suite.json", Options(("bcube_2_1", "hub_4"), seeds=1, chunks=(4,))
    begin: Callable[..., Results] = lambda resume, again=(): Results.begin(  # noqa: E731
        path, "command", suite.settings(options), resume, again
    )
    suite.measure(options, begin(False))
    everything = [*SCHEDULERS, "auto", "policy"]
    assert planned == 2 * everything
    saved = path.read_text()

    planned.clear()
    suite.measure(options, begin(True))
    assert planned == []
    assert path.read_text() == saved

    partial = Results.read(path)
    partial.rows = [row for row in partial.rows if (row["topology"], row["label"]) != ("hub_4", "linear")]
    partial.save()
    suite.measure(options, begin(True))
    assert planned == ["linear"]
    assert path.read_text().count("hub_4") == saved.count("hub_4")

    planned.clear()
    suite.measure(Options(("hub_4",), seeds=1, chunks=(4,)), begin(False, ("hub_4",)))
    assert planned == everything
    assert Results.read(path).names() == ["bcube_2_1", "hub_4"]

    with pytest.raises(InputError, match=r"suite\.json: measured with other seeds"):
        Results.begin(path, "command", suite.settings(Options(seeds=2, chunks=(4,))), True, ())


def test_an_interrupted_run_keeps_its_networks(
    tmp_path: Path, planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended = suite.evaluate

    def failing(topologies: Any, names: Any, *rest: Any) -> Iterator[Row]:
        if topologies[0].name == "hub_4" and "linear" in names:
            raise KeyboardInterrupt
        return pretended(topologies, names, *rest)

    monkeypatch.setattr(suite, "evaluate", failing)
    options = Options(("bcube_2_1", "hub_4"), seeds=1)
    path = tmp_path / "suite.json"
    with pytest.raises(KeyboardInterrupt):
        suite.measure(options, Results(path, "command", suite.settings(options)))
    assert Results.read(path).names() == ["bcube_2_1"]


def test_pictures_and_tables_are_made(tmp_path: Path) -> None:
    for results, part in ((suite_results(tmp_path), suite.PART), (sizes_results(tmp_path), sizes.PART)):
        results.save()
        assert part.draw is not None
        part.draw(Results.read(results.path), results.path.with_suffix(".png"))
        assert results.path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert any(".png" in content for content in part.tables(results).values())
    shown = suite.tables(suite_results(tmp_path))
    assert "| dgx_2x8 | 1.000 | 1.000 (1, 4; 0.1) |" in shown["suite"]
    assert "33.3%" in shown["families"]


def test_cases_sample_as_the_planner_does() -> None:
    """Half an AllReduce on symmetric links is the case's makespan: the same packings, guides and draws."""
    torch.manual_seed(0)
    policy = Policy().eval()
    network = dgx(2, 2)
    cases: list[Case] = [
        case for case in cases_of(network, 0) if (case.kind, case.chunks_per_server) == ("plain", 2)
    ]
    (case,) = cases
    for scorer in (*RULES, policy_scorer("policy", policy)):
        whole = schedule_with(scorer.label, network, case.message_bytes, 2, 18, 0, policy)
        ratios = case.sample(scorer, 18)
        assert 2 * case.bound_s * ratios == pytest.approx(whole.makespans)
        single = row_of(case, scorer, ratios)["sample_mean_ratio"]
        assert 2 * case.bound_s * single == pytest.approx(whole.singles.mean())  # type: ignore[operator]


def test_large_plans_get_one_planning_seed() -> None:
    network = dgx(4, 16)
    assert suite.planning_seeds(network, 4, 5) == 5
    assert suite.planning_seeds(network, 5, 5) == 1
    assert suite.planning_seeds(dgx(5, 13), 1, 5) == 1
