"""The front door: plan an AllReduce with the best of all planners, or with one by name."""

from gnnsched.planning.checkpoints import default_checkpoint, load_policy
from gnnsched.planning.front_door import Plan, compare, plan, warm_up
from gnnsched.planning.schedulers import SCHEDULERS, Sampled, schedule_with
from gnnsched.planning.search import Rung

__all__ = [
    "SCHEDULERS",
    "Plan",
    "Rung",
    "Sampled",
    "compare",
    "default_checkpoint",
    "load_policy",
    "plan",
    "schedule_with",
    "warm_up",
]
