"""Profiles of torch models: the graph by torch.fx, times from a stated roofline or measured, sizes from the tensors."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from gnnsched.partition.job_graph import JobProfile
from gnnsched.partition.zoo import MODELS, Attention, Model, Recurrent
from gnnsched.topology.errors import InputError, nearest, shown


@dataclass(frozen=True)
class Device:
    """A roofline: what a device computes (flop/s in single precision) and moves (bytes/s), both as reached in practice.

    ``efficiency``: the part of the maker's figures that this is.
    """

    name: str
    flops: float
    bandwidth: float
    efficiency: float


_REACHED = 0.5
DEVICES = {
    device.name: device
    for device in (
        Device("v100", 15.7e12 * _REACHED, 900e9 * _REACHED, _REACHED),
        Device("a100", 19.5e12 * _REACHED, 2039e9 * _REACHED, _REACHED),
        Device("h100", 66.9e12 * _REACHED, 3350e9 * _REACHED, _REACHED),
    )
}
DEFAULT_DEVICE = "v100"
MOST_SAMPLES = 1_000_000


class _Tracer(fx.Tracer):
    """Takes layers with an inside of their own as one op."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (Recurrent, Attention)) or super().is_leaf_module(m, module_qualified_name)


@dataclass
class _Op:
    name: str
    forward: float
    backward: float
    activation: float
    parameter: float


def _bytes(value: Any) -> float:
    tensors = value if isinstance(value, (tuple, list)) else (value,)
    return float(sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor)))


@dataclass(frozen=True)
class _Call:
    """An op as it was run: what, on what, and what came of it; ``parameter``: bytes of its weights."""

    run: Callable[..., Any]
    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    parameter: float


# Seconds of an op's forward and backward pass.
_Times = Callable[[_Call], tuple[float, float]]


class _Walk(fx.Interpreter):
    """Runs the graph op by op and notes each one."""

    def __init__(self, module: fx.GraphModule, times: _Times) -> None:
        super().__init__(module)
        self.ops: dict[fx.Node, _Op] = {}
        self.times = times

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "output":
            return result
        inner = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        parameter = sum(_bytes(p) for p in inner.parameters()) if isinstance(inner, nn.Module) else 0.0
        forward, backward = 0.0, 0.0
        if n.op != "placeholder":
            inputs, kwargs = self.fetch_args_kwargs_from_env(n)
            run = n.target if inner is None else inner
            assert callable(run)
            forward, backward = self.times(_Call(run, inputs, kwargs, result, parameter))
        self.ops[n] = _Op(_name(n, inner), forward, backward, _bytes(result), parameter)
        return result


def _name(node: fx.Node, inner: object) -> str:
    """The op as PipeDream writes it: on one line, without its separator."""
    if isinstance(inner, nn.Module):
        return " ".join(repr(inner).split()).replace(" -- ", " ")
    if node.op == "placeholder":
        return f"Input({node.name})"
    return getattr(node.target, "__name__", str(node.target)).capitalize() + "()"


def _flops(call: _Call) -> float:
    if isinstance(call.run, Recurrent):
        # Each weight is used once for each position of each sequence; the counter does not look into LSTMs.
        positions = float(np.prod(call.inputs[0].shape[:-1]))
        return 2.0 * positions * sum(p.numel() for p in call.run.parameters() if p.dim() > 1)
    with FlopCounterMode(display=False) as counter:
        call.run(*call.inputs, **call.kwargs)
    return float(counter.get_total_flops())


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (tuple, list)):
        return [tensor for value in values for tensor in _tensors(value)]
    return []


def _roofline(device: Device) -> _Times:
    def times(call: _Call) -> tuple[float, float]:
        """Forward, the longer of computing and moving inputs, outputs and weights; backward, twice that, since
        gradients of inputs and of weights are computed; once where there are no weights.
        """
        if _shares_memory(call):
            return 0.0, 0.0
        moved = sum(map(_bytes, _tensors(call.inputs))) + _bytes(call.result) + call.parameter
        seconds = max(_flops(call) / device.flops, moved / device.bandwidth)
        return seconds, (2.0 if call.parameter else 1.0) * seconds

    return times


def _shares_memory(call: _Call) -> bool:
    """Whether an op only looks at its input in another way, which takes no time."""
    result = call.result
    return isinstance(call.run, nn.Flatten) or (
        isinstance(result, Tensor)
        and result._is_view()
        and any(result._base is t for t in _tensors(call.inputs))
    )


def _measured(place: str, repeats: int = 3) -> _Times:
    def clock() -> float:
        if place.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    def times(call: _Call) -> tuple[float, float]:
        """The least of some repetitions."""
        forward, backward = [], []
        fresh = fx.node.map_aggregate(
            call.inputs,
            lambda t: (
                t.detach().clone().requires_grad_(t.is_floating_point()) if isinstance(t, Tensor) else t
            ),
        )
        for _ in range(repeats):
            begin = clock()
            made = _tensors(call.run(*fresh, **call.kwargs))
            forward.append(clock() - begin)
            roots = [t for t in made if t.requires_grad]
            ones = [torch.ones_like(t) for t in roots]
            begin = clock()
            if roots:
                torch.autograd.backward(roots, ones)
            backward.append(clock() - begin)
        return min(forward), min(backward)

    return times


def profile_model(
    name: str, device: str = DEFAULT_DEVICE, batch: int | None = None, measure: str | None = None
) -> tuple[JobProfile, dict[str, Any]]:
    """Profile of the model ``name`` of ``zoo.MODELS``, and what it was made with.

    Times are those of the roofline of ``device`` (a name of ``DEVICES``), or measured on the torch device
    ``measure``. ``batch``: samples of a step. Raises InputError for names that are not known.
    """
    model = MODELS.get(name)
    if model is None:
        near = nearest(name, MODELS)
        raise InputError(
            f"model {shown(name)}: unknown; " + (f"did you mean {near}?" if near else ", ".join(MODELS))
        )
    if device not in DEVICES:
        raise InputError(f"device {shown(device)}: no roofline known; one of {', '.join(DEVICES)}")
    size = model.batch if batch is None else batch
    if not 1 <= size <= MOST_SAMPLES:
        raise InputError(f"batch {size}: give 1 to {MOST_SAMPLES} samples")
    place = "meta" if measure is None else measure
    times = _roofline(DEVICES[device]) if measure is None else _measured(place)
    try:
        profile = _profile(name, model, size, place, times)
    except RuntimeError as error:
        # Torch says so where memory runs out, on any device.
        if measure is None or ("alloc" not in str(error) and "memory" not in str(error)):
            raise
        raise InputError(
            f"batch {size}: {name} does not fit in the memory of {measure}; give fewer"
        ) from None
    source = {"roofline": asdict(DEVICES[device])} if measure is None else {"measured_on": measure}
    about = {
        "model": name,
        "batch": size,
        "profile_time_unit": "ms",
        "size_unit": "bytes",
        "numbers": "float32",
        **source,
    }
    return profile, about


def _profile(name: str, model: Model, batch: int, place: str, times: _Times) -> JobProfile:
    with torch.device(place):
        module = model.make().train()
        inputs = model.inputs(batch)
    walk = _Walk(fx.GraphModule(module, _Tracer().trace(module)), times)
    walk.run(*inputs)
    number = {node: i for i, node in enumerate(walk.ops)}
    edges = {
        (number[source], number[node])
        for node in walk.ops
        for source in node.all_input_nodes
        if source in number
    }
    columns = np.array([[op.forward, op.backward, op.activation, op.parameter] for op in walk.ops.values()]).T
    return JobProfile(
        name=name,
        op_names=tuple(op.name for op in walk.ops.values()),
        forward_time=columns[0],
        backward_time=columns[1],
        activation_bytes=columns[2],
        parameter_bytes=columns[3],
        edges=np.array(sorted(edges), np.int64).reshape(-1, 2),
    )
