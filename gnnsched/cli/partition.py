"""``gnnsched partition``: profiles of models, one job's time by degree, training, and policies compared."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg, subcommand

from gnnsched.cli.options import check_device, check_output, check_rows_file, write_rows
from gnnsched.cli.partition_evaluate import EvaluatePartition
from gnnsched.cli.partition_options import BoundFactor, ClusterName, Profiles, load
from gnnsched.cli.partition_train import TrainPartition
from gnnsched.cli.progress import Progress
from gnnsched.cli.tables import table


@dataclass(frozen=True)
class Profile:
    """Derive the training graph of a model and write it as a PipeDream profile: times in ms, sizes in bytes.

    What it was made with is written beside it, as JSON.
    """

    model: Positional[Annotated[str, arg(metavar="MODEL")]]
    """alexnet, vgg16, resnet18, squeezenet, gnmt or gpt."""
    output: Annotated[Path, arg(aliases=["-o"], metavar="FILE")]
    """The profile to write (.txt)."""
    roofline: str = "v100"
    """Device whose roofline gives the times: v100, a100 or h100."""
    batch: int | None = None
    """Samples of a training step (default: the model's usual number)."""
    measure: bool = False
    """Measure the times on this machine instead."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to measure."""

    def run(self) -> int:
        check_output(self.output, (".txt",))
        about_file = self.output.with_name(self.output.name + ".json")
        check_output(about_file, (".json",))
        if self.measure:
            check_device(self.device)
        from gnnsched.partition.job_graph import mirrored
        from gnnsched.partition.profile_file import write_profile
        from gnnsched.partition.profiler import profile_model
        from gnnsched.topology.files import write_atomically
        from gnnsched.topology.units import format_size, format_time

        with Progress("profiling", None) as progress:
            progress.say(self.model)
            profile, about = profile_model(
                self.model, self.roofline, self.batch, self.device if self.measure else None
            )
        write_profile(profile, self.output)
        text = json.dumps(about, indent=1) + "\n"
        write_atomically(about_file, lambda stream: stream.write(text.encode()))
        graph = mirrored(profile)
        print(
            f"{self.model}: {graph.num_ops} ops, {len(graph.edges)} edges in a training step, "
            f"{format_time(graph.step_time)} on one worker, {format_size(graph.total_memory)} of memory; "
            f"written to {self.output}, what it was made with to {about_file.name}"
        )
        return 0


@dataclass(frozen=True)
class SimulatePartition:
    """Simulate one training step of each job at each degree: completion time, speed-up, time of communication."""

    profiles: Profiles = None
    """Folder of the jobs' profiles (default: the five shipped models)."""
    cluster: ClusterName = "ramp32"
    """ramp8, ramp16, ramp32, ramp64, ramp128, ramp512, or a topology file."""
    ddls_units: bool = False
    """A profile's milliseconds are taken for seconds, as in the published program."""
    holding: Literal["faithful", "exact"] = "faithful"
    """A job holds the blocks of all its ops, or just as many workers as its degree (always so on a topology)."""
    bound_factor: BoundFactor = None
    """Take an AllReduce on a topology to last this many times its bound, such as 1.1, instead of planning it."""
    json: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the rows to this file as a JSON list; - is the standard output."""

    def run(self) -> int:
        check_rows_file(self.json)
        from gnnsched.partition.job_times import job_times
        from gnnsched.topology.units import format_time

        (world,) = load(
            (self.cluster,), (self.profiles,), self.ddls_units, (self.holding,), self.bound_factor
        )
        rows = job_times(world)
        if write_rows(rows, self.json):
            return 0
        lines = [
            (
                row["model"],
                str(row["degree"]),
                str(row["workers"]),
                format_time(row["jct_s"]),
                format_time(row["surrogate_jct_s"]),
                f"{row['speedup']:.2f}",
                format_time(row["computing_s"]),
                format_time(row["communicating_s"]),
            )
            for row in rows
        ]
        header = ("job", "degree", "workers", "time", "surrogate", "speed-up", "computing", "communicating")
        print(f"{world.cluster.name}, {self.holding} holding, on an empty cluster\n" + table(header, lines))
        return 0


@dataclass(frozen=True)
class Partition:
    """PAC-ML: how far to partition each arriving training job, so that most jobs meet their deadline."""

    action: (
        Annotated[Profile, subcommand("profile")]
        | Annotated[TrainPartition, subcommand("train")]
        | Annotated[EvaluatePartition, subcommand("evaluate")]
        | Annotated[SimulatePartition, subcommand("simulate")]
    )

    def run(self) -> int:
        return self.action.run()
