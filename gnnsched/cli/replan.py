"""``gnnsched replan``: what is left of a schedule on what is left of the network."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import UseAppendAction, arg

from gnnsched.cli.options import Checkpoint, NetworkFile, ScheduleFile, check_device, check_output, check_seed
from gnnsched.cli.progress import Progress
from gnnsched.cli.tables import counted

if TYPE_CHECKING:
    from gnnsched.collective.schedule import Schedule
    from gnnsched.planning.replan import Failure


@dataclass(frozen=True)
class Replan:
    """Plan the rest of a running AllReduce anew after links or servers have failed.

    What was delivered before --at stays; transfers that still need what failed are cut, and what is left to do is
    planned on the network that is left. Exit code 2 where the network is cut in two or a contribution is lost.
    """

    topology: NetworkFile
    schedule: ScheduleFile
    at: Annotated[str, arg(metavar="TIME")]
    """Moment of the failure, such as 1.5ms, from the AllReduce's beginning."""
    output: Annotated[Path, arg(aliases=["-o"], metavar="NEW")]
    """Where to write the new schedule (.json or .npz)."""
    without_link: UseAppendAction[Annotated[tuple[tuple[str, str], ...], arg(metavar="A B")]] = ()
    """Ends of a cable that fails, all parallel ones and both directions of it; may be given again."""
    without_server: UseAppendAction[Annotated[tuple[str, ...], arg(metavar="ID")]] = ()
    """A server that fails with all its links; may be given again."""
    one_way: bool = False
    """Links fail from A to B only."""
    exclude_lost: bool = False
    """Go on without what failed servers take with them."""
    scheduler: Annotated[str, arg(metavar="NAME")] = "policy"
    """policy, greedy_augmented, trees_augmented, linear, greedy or random."""
    checkpoint: Checkpoint = None
    """Of the policy (default: the shipped one)."""
    samples: int = 1
    """Plans that are drawn, the best of which counts."""
    seed: int = 0
    """Of all random choices."""
    device: str = "cpu"
    """Where the policy's network runs: cpu or cuda."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        check_output(self.output, (".json", ".npz"))
        check_seed(self.seed)
        from gnnsched.collective.schedule_io import dump_schedule, load_schedule
        from gnnsched.collective.verify import verify
        from gnnsched.planning import load_policy, warm_up
        from gnnsched.planning.replan import replan
        from gnnsched.planning.schedulers import check_numbers
        from gnnsched.topology import InputError
        from gnnsched.topology.formats import load_topology

        before = load_schedule(self.schedule, load_topology(self.topology))
        fault = verify(before).fault
        if fault is not None:
            raise InputError(f"{self.schedule}: wrong before anything fails: {fault}; plan it again")
        check_numbers(before.message_bytes, 1, self.samples, self.seed)
        failure = self._failure(before)
        policy = None
        if self.scheduler == "policy":
            check_device(self.device)
            policy = load_policy(self.checkpoint, self.device)
        with Progress("replanning") as progress:
            progress.say("loading kernels")
            warm_up()
            begin = time.monotonic()
            after = replan(before, failure, self.scheduler, policy, self.samples, self.seed)
            plan_s = time.monotonic() - begin
        verdict = verify(after)
        if not verdict.ok:
            raise RuntimeError(f"replanning made a wrong schedule: {verdict.fault}")
        dump_schedule(after, self.output)
        facts = replan_facts(before, after, failure, plan_s)
        print(json.dumps(facts, indent=2) if self.json else self._described(facts))
        return 0

    def _failure(self, schedule: "Schedule") -> "Failure":
        from gnnsched.planning.replan import Failure, links_between, node_named
        from gnnsched.topology import InputError
        from gnnsched.topology.units import parse_latency

        topology = schedule.topology
        try:
            moment = parse_latency(self.at)
        except InputError as error:
            raise InputError(f"--at: {error}") from None
        links: tuple[int, ...] = ()
        for ends in self.without_link:
            first, second = (node_named(topology, name, "--without-link") for name in ends)
            links += links_between(topology, first, second, self.one_way)
        servers = tuple(node_named(topology, name, "--without-server") for name in self.without_server)
        for server in servers:
            if topology.is_switch[server]:
                raise InputError(
                    f"--without-server: {topology.node_ids[server]!r} is a switch; name its links"
                )
        if not links and not servers:
            raise InputError("replan: nothing fails; name it with --without-link or --without-server")
        return Failure(moment, links, servers, self.exclude_lost)

    def _described(self, facts: dict[str, Any]) -> str:
        from gnnsched.topology.units import format_time

        lost = f", {counted(len(facts['lost']), 'server')} lost" if facts["lost"] else ""
        cut, new = counted(facts["aborted"], "transfer"), counted(facts["new_transfers"], "transfer")
        rest = counted(facts["unfinished_chunks"], "unfinished chunk")
        at, took, done, before, bound = (
            format_time(facts[name]) for name in ("at_s", "plan_s", "makespan_s", "before_s", "bound_s")
        )
        return "\n".join(
            [
                f"{facts['topology']}: at {at} {cut} cut or lost{lost}, {new} planned anew in {took}, "
                "verified with what was before",
                f"done at {done} instead of {before}; bound of a fresh AllReduce of the {rest} from then on: {bound} "
                f"(ratio {facts['ratio']:.4f})",
                f"written to {self.output}",
            ]
        )


def replan_facts(before: "Schedule", after: "Schedule", failure: "Failure", plan_s: float) -> dict[str, Any]:
    """What ``replan --json`` prints; times in seconds. ``bound_s``: the failure's moment and, from then on, the bound
    of a fresh AllReduce of the chunks that were not finished, on the network that is left.
    """
    from gnnsched.planning.replan import bound_of_rest

    unfinished, rest_s = bound_of_rest(before, failure)
    bound = failure.moment + rest_s
    new = int((after.transfers.start >= failure.moment).sum())
    topology = after.topology
    return {
        "topology": topology.name,
        "at_s": failure.moment,
        "aborted": int(after.transfers.lost.sum() - before.transfers.lost.sum()),
        "new_transfers": new,
        "unfinished_chunks": unfinished,
        "lost": [str(topology.node_ids[node]) for node in after.lost],
        "before_s": before.makespan,
        "makespan_s": after.makespan,
        "bound_s": bound,
        "ratio": after.makespan / bound if bound > 0 else 1.0,
        "plan_s": plan_s,
        "verified": True,
    }
