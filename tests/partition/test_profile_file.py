"""PipeDream's profiles: published figures from the files, one line about whatever is wrong, and the way back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_jobs import PROFILES, needs_profiles, random_profile

from gnnsched.partition.job_graph import mirrored
from gnnsched.partition.profile_file import read_profile, write_profile
from gnnsched.topology import InputError


def node(number: object, name: str = "Op(1, 2)", **changed: str | None) -> str:
    """A node line; a field that is given as None is left out."""
    fields = {
        "forward_compute_time": "1.5",
        "backward_compute_time": "0.5",
        "activation_size": "8.0",
        "parameter_size": "2.0",
    } | changed
    values = ", ".join(f"{key}={value}" for key, value in fields.items() if value is not None)
    return f"node{number} -- {name} -- {values}\n"


def edge(tail: object, head: object) -> str:
    return f"\tnode{tail} -- node{head}\n"


# Published figures


@needs_profiles
@pytest.mark.parametrize(
    ("name", "ops", "edges", "step", "job", "memory", "edge_bytes", "largest", "depth"),
    [
        ("alexnet", 46, 47, 721.223, 36061.15, 3.0462e9, 2.42216e9, 635.902, 44),
        ("resnet18", 142, 159, 733.367, 36668.35, 1.72587e10, 1.87333e10, 473.625, 60),
        ("squeezenet1_0", 136, 153, 760.003, 38000.15, 2.49626e10, 2.79101e10, 474.637, 102),
        ("vgg16", 82, 83, 690.507, 34525.35, 3.06253e10, 2.94671e10, 113.330, 80),
        ("gnmt", 96, 117, 89.416, 4470.80, 2.36845e9, 1.02780e9, 15.883, 30),
    ],
)
def test_the_five_models_are_as_published(
    name: str,
    ops: int,
    edges: int,
    step: float,
    job: float,
    memory: float,
    edge_bytes: float,
    largest: float,
    depth: int,
) -> None:
    graph = mirrored(read_profile(PROFILES / f"{name}.txt", time_unit=1.0))
    assert (graph.num_ops, len(graph.edges)) == (ops, edges)
    assert graph.step_time == pytest.approx(step, abs=5e-4)
    assert graph.sequential_time == pytest.approx(job, abs=5e-3)
    # As many digits as the table has.
    assert graph.total_memory == pytest.approx(memory, rel=3e-5)
    assert graph.total_edge_bytes == pytest.approx(edge_bytes, rel=3e-5)
    assert graph.compute.max() == pytest.approx(largest, abs=5e-4)
    assert graph.depth.max() == depth
    # A time in a file is in ms unless somebody says otherwise.
    assert mirrored(read_profile(PROFILES / f"{name}.txt")).step_time == pytest.approx(1e-3 * step, rel=1e-6)


@needs_profiles
def test_means_over_the_five_models() -> None:
    graphs = [
        mirrored(read_profile(path, 1.0))
        for path in sorted(PROFILES.glob("*.txt"))
        if "LICENSE" not in path.name
    ]
    assert np.mean([graph.num_ops for graph in graphs]) == pytest.approx(100.4)
    assert np.mean([len(graph.edges) for graph in graphs]) == pytest.approx(111.8)
    assert np.mean([graph.sequential_time for graph in graphs]) == pytest.approx(29945.16, abs=0.2)


# What a line may look like


def test_every_field_gets_where_it_belongs(tmp_path: Path) -> None:
    """Edges before nodes, ids in any order, a stage, a list of activations, and no newline at the end."""
    path = tmp_path / "two heads.txt"
    path.write_text(
        edge(2, 1)
        + "\n"
        + node(2, "Cat(tensor, dim=1)", activation_size="[4.0; 1.5; 0.5]")
        + node(1, parameter_size="7").replace("\n", " -- stage_id=3\n")
        + edge(2, 3)
        + node(3, forward_compute_time="2", backward_compute_time="1e-3").rstrip("\n")
    )
    found = read_profile(path)
    assert found.name == "two heads"
    assert found.op_names == ("Op(1, 2)", "Cat(tensor, dim=1)", "Op(1, 2)")
    assert found.forward_time.tolist() == pytest.approx([1.5e-3, 1.5e-3, 2e-3], rel=1e-15)
    assert found.backward_time.tolist() == pytest.approx([5e-4, 5e-4, 1e-6], rel=1e-15)
    assert found.activation_bytes.tolist() == [8.0, 6.0, 8.0]
    assert found.parameter_bytes.tolist() == [7.0, 2.0, 2.0]
    assert found.edges.tolist() == [[1, 0], [1, 2]]
    assert found.lines == (4, 3, 6)
    assert read_profile(path, 2.0).forward_time.tolist() == [3.0, 3.0, 4.0]


def test_one_op_is_a_job(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text(node(1))
    assert read_profile(path).edges.shape == (0, 2)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_what_is_written_is_read_again(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    written = random_profile(rng, most=9)
    # A file keeps nanoseconds and thousandths of a byte.
    written = replace(
        written,
        op_names=tuple(f"Conv2d({i}, kernel_size=({i}, 3)); --x" for i in range(written.num_ops)),
        forward_time=np.round(written.forward_time, 9),
        backward_time=np.round(written.backward_time, 9),
        activation_bytes=np.round(written.activation_bytes, 3),
        parameter_bytes=np.round(written.parameter_bytes, 3),
    )
    path = tmp_path_factory.getbasetemp() / "job.txt"
    write_profile(written, path)
    found = read_profile(path)
    assert (found.name, found.op_names) == ("job", written.op_names)
    np.testing.assert_array_equal(found.edges, written.edges)
    for field in ("forward_time", "backward_time", "activation_bytes", "parameter_bytes"):
        np.testing.assert_allclose(getattr(found, field), getattr(written, field), rtol=1e-12, atol=1e-18)
    before = path.read_bytes()
    write_profile(found, path)
    assert path.read_bytes() == before


# Refusals: what is wrong, the file, and what the message names

CHAIN = node(1) + node(2) + node(3) + edge(1, 2) + edge(2, 3)
REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "a cycle": (CHAIN + edge(3, 2), ("closes a cycle", "node2", "node3")),
    "a cycle behind a chain": (
        CHAIN + node(4) + node(5) + edge(3, 4) + edge(4, 3) + edge(4, 5),
        ("closes a cycle", "node3", "node4"),
    ),
    "a self-loop": (CHAIN + edge(2, 2), ("line 6", "node2 -- node2", "cycle")),
    "an edge to nobody": (CHAIN + edge(2, 4), ("line 6", "node2 -- node4", "no node4")),
    "an edge from nobody": (CHAIN + edge(0, 2), ("line 6", "node0 -- node2", "no node0")),
    "an edge twice": (CHAIN + edge(1, 2), ("line 6", "node1 -- node2", "already on line 4")),
    "a node twice": (CHAIN + node(2), ("line 6", "node2", "already on line 2")),
    "a gap": (node(1) + node(2) + node(4), ("line 3", "node4", "gap", "node3 is missing")),
    "ids from 0": (node(0) + node(1), ("line 1", "node0", "gap", "node2 is missing")),
    "a negative time": (
        node(1) + node(2, forward_compute_time="-0.5"),
        ("line 2", "node2: forward_compute_time", "-0.5", "negative"),
    ),
    "NaN": (
        node(1, backward_compute_time="nan"),
        ("line 1", "node1: backward_compute_time", "nan", "not finite"),
    ),
    "infinity": (node(1, parameter_size="inf"), ("line 1", "node1: parameter_size", "inf", "not finite")),
    "a word": (node(1, activation_size="much"), ("line 1", "node1: activation_size", "'much'", "no number")),
    "one of a list": (
        node(1, activation_size="[4.0; -1.0]"),
        ("line 1", "node1: activation_size", "-1.0", "negative"),
    ),
    "an empty list": (node(1, activation_size="[]"), ("line 1", "node1: activation_size", "no number")),
    "a list of parameters": (
        node(1, parameter_size="[4.0; 1.0]"),
        ("line 1", "node1: parameter_size", "no number"),
    ),
    "no value": (node(1, forward_compute_time=""), ("line 1", "node1: forward_compute_time", "no number")),
    "a missing field": (
        node(1) + node(2, backward_compute_time=None),
        ("line 2", "node2: backward_compute_time is missing"),
    ),
    "a field twice": (
        node(1).replace("\n", ", forward_compute_time=1\n"),
        ("line 1", "node1: forward_compute_time is given twice"),
    ),
    "an unknown field": (
        node(1, activation_size=None, activations_size="4"),
        ("line 1", "node1", "'activations_size'", 'did you mean "activation_size"?'),
    ),
    "an unknown field at the end": (
        node(1).replace("\n", " -- stage=1\n"),
        ("line 1", "node1", "'stage'", 'did you mean "stage_id"?'),
    ),
    "a field without a value": (
        node(1).replace(", param", ", x, param"),
        ("line 1", "node1", "unknown key 'x'", "known keys"),
    ),
    "no fields": (node(1) + "node2 -- Conv2d(3, 64)\n", ("line 2", "node2 -- Conv2d(3, 64)", "no node")),
    "no id": (node(1) + node("x"), ("line 2", "nodex", "is no node")),
    "an endless id": (node(1) + node("1" * 5000), ("line 2", "is no node")),
    "more bytes than there are": (
        node(1, parameter_size="1e300"),
        ("line 1", "node1: parameter_size", "1e300"),
    ),
    "prose": ("A profile of AlexNet\n", ("line 1", "A profile of AlexNet", "is no node")),
    "an edge of three": (CHAIN + "\tnode1 -- node2 -- node3\n", ("line 6", "is no edge")),
    "an edge of one": (CHAIN + "\tnode1\n", ("line 6", "'node1' is no edge")),
    "an edge of words": (CHAIN + "\tinput -- output\n", ("line 6", "is no edge")),
    "edges only": (edge(1, 2), ("no node line",)),
    "no time at all": (
        node(1, forward_compute_time="0", backward_compute_time="0.0"),
        ("line 1", "forward_compute_time", "no op takes any time"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_profile_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    content, named = REFUSED[case]
    path = tmp_path / "job.txt"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_profile(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for part in named:
        assert part in message


@pytest.mark.parametrize(
    ("content", "word"), [(b"", "empty"), (b" \n\n", "empty"), (b"node1 -- \xff\xfe", "not UTF-8")]
)
def test_what_is_no_text_is_refused_in_one_line(content: bytes, word: str, tmp_path: Path) -> None:
    path = tmp_path / "job.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=word) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent.txt"):
        with pytest.raises(InputError, match=str(place)):
            read_profile(place)


def test_a_cycle_is_named_by_the_line_of_one_of_its_edges(tmp_path: Path) -> None:
    """And never by one that merely leads to the cycle or away from it."""
    path = tmp_path / "job.txt"
    for seed in range(30):
        rng = np.random.default_rng(seed)
        order = [int(i) for i in rng.permutation(6)]
        ring = order[1:4]
        lines = [node(i + 1) for i in range(6)]
        on_cycle = [(ring[i] + 1, ring[(i + 1) % 3] + 1) for i in range(3)]
        others = [(order[0] + 1, ring[0] + 1), (ring[1] + 1, order[4] + 1), (order[4] + 1, order[5] + 1)]
        everything = [*on_cycle, *others]
        rng.shuffle(everything)
        path.write_text("".join(lines) + "".join(edge(*pair) for pair in everything))
        with pytest.raises(InputError, match="closes a cycle") as caught:
            read_profile(path)
        line = int(str(caught.value).split("line ")[1].split(":")[0])
        assert tuple(int(i) for i in everything[line - 7]) in on_cycle
