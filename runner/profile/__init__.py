"""The YAML profile: one file describes cluster and job. Checked as a whole, every error with its place."""

from disttui.runner.profile.load import load, parse, parse_inventory, parse_quickly, with_overrides
from disttui.runner.profile.nodes import ProfileText, read
from disttui.runner.profile.problems import ProfileErrors, ProfileProblem
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host, Job, Launch, Metrics, Parallel, Target, parse_host

__all__ = [
    "Host", "Job", "Launch", "Metrics", "Parallel", "Profile", "ProfileErrors", "ProfileProblem", "ProfileText",
    "Target", "load", "parse", "parse_host", "parse_inventory", "parse_quickly", "read",
    "with_overrides",
]  # fmt: skip
