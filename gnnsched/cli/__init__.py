"""The ``gnnsched`` command.

Only tyro and the standard library are loaded to read the command line; each subcommand imports what it needs when
it runs. Exit codes: 0 done, 1 the schedule at hand is wrong, 2 bad input (one line on stderr), 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro
from tyro.conf import subcommand

from gnnsched.cli.embed import Embed
from gnnsched.cli.evaluate import Evaluate
from gnnsched.cli.partition import Partition
from gnnsched.cli.referee import Simulate, Verify
from gnnsched.cli.replan import Replan
from gnnsched.cli.schedule import Schedule
from gnnsched.cli.topology import Topology
from gnnsched.cli.train import Train

Command = (
    Annotated[Topology, subcommand("topology")]
    | Annotated[Schedule, subcommand("schedule")]
    | Annotated[Replan, subcommand("replan")]
    | Annotated[Verify, subcommand("verify")]
    | Annotated[Simulate, subcommand("simulate")]
    | Annotated[Train, subcommand("train")]
    | Annotated[Evaluate, subcommand("evaluate")]
    | Annotated[Embed, subcommand("embed")]
    | Annotated[Partition, subcommand("partition")]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:2] == ["topology", "generate"] and len(arguments) > 2 and not arguments[2].startswith("-"):
        # Families are spelled as in Python; fat-tree is what the hand types.
        arguments[2] = arguments[2].replace("-", "_")
    command = tyro.cli(
        Command,
        prog="gnnsched",
        description="Plans AllReduce on any network with one trained graph neural network.",
        args=arguments,
        config=(
            tyro.conf.OmitArgPrefixes,
            tyro.conf.OmitSubcommandPrefixes,
            tyro.conf.FlagCreatePairsOff,
        ),
    )
    from gnnsched.topology import InputError

    try:
        code: int = command.run()
        sys.stdout.flush()
    except InputError as error:
        print(f"gnnsched: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gnnsched: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output has gone; nothing may be written there any more, not even on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
