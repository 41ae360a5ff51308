"""Profiles of own models: closed forms of FLOPs and bytes, the form of the graphs, and the shipped files."""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnsched.partition.job_graph import JobProfile
from gnnsched.partition.profile_file import read_profile, write_profile
from gnnsched.partition.profiler import DEVICES, profile_model
from gnnsched.partition.zoo import MODELS, SHIPPED
from gnnsched.topology import InputError

BATCH = 256


@cache
def made(name: str) -> JobProfile:
    return profile_model(name)[0]


def ops(profile: JobProfile, word: str) -> list[int]:
    """Places of the ops whose name begins with ``word``."""
    return [i for i, name in enumerate(profile.op_names) if name.startswith(word)]


# Closed forms

# AlexNet's convolutions: channels in and out, side of the kernel and of what comes out.
CONVOLUTIONS = [(3, 64, 11, 55), (64, 192, 5, 27), (192, 384, 3, 13), (384, 256, 3, 13), (256, 256, 3, 13)]
LINEAR = [(9216, 4096), (4096, 4096), (4096, 1000)]


@pytest.mark.parametrize("device", DEVICES)
def test_layers_of_alexnet_take_what_their_operations_take(device: str) -> None:
    """Two operations per weight and output; all these layers compute longer than they move bytes."""
    profile, _ = profile_model("alexnet", device)
    flops = DEVICES[device].flops
    convolutions = ops(profile, "Conv2d")
    for op, (inputs, outputs, kernel, side) in zip(convolutions, CONVOLUTIONS, strict=True):
        operations = 2.0 * BATCH * side**2 * outputs * inputs * kernel**2
        moved = profile.activation_bytes[op] + 4.0 * outputs * (inputs * kernel**2 + 1)
        assert operations / flops > moved / DEVICES[device].bandwidth
        assert profile.forward_time[op] * flops == pytest.approx(operations, rel=1e-9)
        # Gradients of what went in and of the weights.
        assert profile.backward_time[op] == pytest.approx(2.0 * profile.forward_time[op])
        assert profile.activation_bytes[op] == 4.0 * BATCH * outputs * side**2
        assert profile.parameter_bytes[op] == 4.0 * outputs * (inputs * kernel**2 + 1)
    for op, (inputs, outputs) in zip(ops(profile, "Linear"), LINEAR, strict=True):
        operations = 2.0 * BATCH * inputs * outputs
        moved = 4.0 * (BATCH * (inputs + outputs) + (inputs + 1) * outputs)
        seconds = max(operations / flops, moved / DEVICES[device].bandwidth)
        assert profile.forward_time[op] == pytest.approx(seconds, rel=1e-9)
        assert profile.parameter_bytes[op] == 4.0 * (inputs + 1) * outputs


def test_what_computes_nothing_takes_the_time_of_its_bytes() -> None:
    profile = made("alexnet")
    first = ops(profile, "ReLU")[0]
    size = 4.0 * BATCH * 64 * 55**2
    assert profile.forward_time[first] == pytest.approx(2 * size / DEVICES["v100"].bandwidth)
    # Without weights there is one gradient.
    assert profile.backward_time[first] == profile.forward_time[first]
    assert profile.parameter_bytes[first] == 0.0
    # A view is no work, nor is what comes in.
    for word in ("Flatten", "Input"):
        (op,) = ops(profile, word)
        assert (profile.forward_time[op], profile.backward_time[op]) == (0.0, 0.0)


def test_layers_of_an_lstm_use_each_weight_once_per_position() -> None:
    """GNMT's second encoder layer: four gates of 1024 inputs and 1024 states, on 128 sentences of 30 words."""
    profile = made("gnmt")
    recurrent = ops(profile, "Recurrent")
    assert len(recurrent) == 8
    weights = 4 * 1024 * (1024 + 1024)
    operations = 2.0 * 128 * 30 * weights
    assert profile.forward_time[recurrent[1]] == pytest.approx(operations / DEVICES["v100"].flops)
    # And two vectors of biases.
    assert profile.parameter_bytes[recurrent[1]] == 4.0 * (weights + 2 * 4 * 1024)


def test_time_grows_with_the_batch_and_weights_do_not() -> None:
    one, two = profile_model("vgg16", batch=16)[0], profile_model("vgg16", batch=32)[0]
    convolutions = ops(one, "Conv2d")
    assert len(convolutions) == 13
    np.testing.assert_allclose(two.activation_bytes, 2 * one.activation_bytes)
    np.testing.assert_array_equal(two.parameter_bytes, one.parameter_bytes)
    np.testing.assert_allclose(two.forward_time[convolutions], 2 * one.forward_time[convolutions], rtol=0.05)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("alexnet", 61.10e6, 61.11e6),
        ("vgg16", 138.35e6, 138.36e6),
        ("resnet18", 11.68e6, 11.70e6),
        ("squeezenet", 1.235e6, 1.249e6),
        ("gnmt", 1e8, 3e8),
        # Without the classifier, which the paper shares with the words, 124 million.
        ("gpt", 124e6 + 50_257 * 768 - 1e6, 124e6 + 50_257 * 768 + 1e6),
    ],
)
def test_parameters_are_as_many_as_in_the_papers(name: str, least: float, most: float) -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in MODELS[name].make().parameters())
    assert least <= count <= most
    assert made(name).parameter_bytes.sum() == 4.0 * count


# Graphs


@pytest.mark.parametrize("name", MODELS)
def test_graphs_have_one_sink_the_last_op(name: str) -> None:
    profile = made(name)
    assert profile.find_cycle() is None
    tails, heads = profile.edges[:, 0], profile.edges[:, 1]
    assert set(range(profile.num_ops)) - set(tails.tolist()) == {profile.num_ops - 1}
    # Only what comes in has no parent, and ops come in the order in which they run.
    sources = set(range(profile.num_ops)) - set(heads.tolist())
    assert sources == set(ops(profile, "Input"))
    assert (tails < heads).all()
    assert not any("\n" in text or " -- " in text for text in profile.op_names)
    assert (profile.forward_time >= 0.0).all()
    assert (profile.activation_bytes > 0.0).all()


def parents(profile: JobProfile, op: int) -> list[str]:
    return [profile.op_names[tail] for tail, head in profile.edges.tolist() if head == op]


def test_joins_have_two_parents() -> None:
    resnet = made("resnet18")
    additions = ops(resnet, "Add")
    assert len(additions) == 8
    for op in additions:
        assert len(parents(resnet, op)) == 2
        # One of them the second convolution's normalisation; three shortcuts have one too.
        assert any(name.startswith("BatchNorm2d") for name in parents(resnet, op))
    both = [op for op in additions if all(name.startswith("BatchNorm2d") for name in parents(resnet, op))]
    assert len(both) == 3
    squeezenet = made("squeezenet")
    joins = ops(squeezenet, "Cat")
    assert len(joins) == 8
    for op in joins:
        assert [name.split("(")[0] for name in parents(squeezenet, op)] == ["ReLU", "ReLU"]
    # All three upper decoder layers read the one context.
    gnmt = made("gnmt")
    (attention,) = ops(gnmt, "Attention")
    assert sum(tail == attention for tail, _ in gnmt.edges.tolist()) == 3
    # A chain has nothing but single parents.
    alexnet = made("alexnet")
    assert len(alexnet.edges) == alexnet.num_ops - 1


# Shipped files


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_are_what_is_made_today(name: str, tmp_path: Path) -> None:
    folder = Path(str(files("gnnsched.partition") / "data" / "profiles"))
    profile, about = profile_model(name)
    write_profile(profile, tmp_path / "job.txt")
    shipped, mine = read_profile(folder / f"{name}.txt"), read_profile(tmp_path / "job.txt")
    assert shipped.op_names == mine.op_names
    np.testing.assert_array_equal(shipped.edges, mine.edges)
    for field in ("forward_time", "backward_time", "activation_bytes", "parameter_bytes"):
        # To a nanosecond, the last digit of a file.
        np.testing.assert_allclose(getattr(shipped, field), getattr(mine, field), rtol=1e-6, atol=1.1e-9)
    assert json.loads((folder / f"{name}.txt.json").read_text()) == about
    assert about["roofline"] == {"name": "v100", "flops": 7.85e12, "bandwidth": 450e9, "efficiency": 0.5}
    assert (about["batch"], about["profile_time_unit"]) == (MODELS[name].batch, "ms")


# Measuring


def test_measured_times_are_positive_where_there_is_work() -> None:
    profile, about = profile_model("squeezenet", batch=1, measure="cpu")
    assert about["measured_on"] == "cpu"
    assert "roofline" not in about
    derived = profile_model("squeezenet", batch=1)[0]
    # The same graph and bytes as from the roofline; only times differ.
    assert profile.op_names == derived.op_names
    np.testing.assert_array_equal(profile.edges, derived.edges)
    np.testing.assert_array_equal(profile.activation_bytes, derived.activation_bytes)
    convolutions = ops(profile, "Conv2d")
    assert len(convolutions) == 26
    assert (profile.forward_time[convolutions] > 0.0).all()
    assert (profile.backward_time[convolutions] > 0.0).all()
    assert profile.forward_time[ops(profile, "Input")].tolist() == [0.0]


# Refusals


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("alexnett",), "did you mean alexnet"),
        (("bert",), "model 'bert': unknown; alexnet, vgg16"),
        (("alexnet", "h200"), "device 'h200': no roofline known; one of v100, a100, h100"),
        (("alexnet", "v100", 0), "batch 0: give 1 to"),
    ],
)
def test_what_cannot_be_profiled_is_refused(arguments: tuple, named: str) -> None:
    with pytest.raises(InputError, match=named) as caught:
        profile_model(*arguments)
    assert "\n" not in str(caught.value)
