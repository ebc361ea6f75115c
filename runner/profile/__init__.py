"""The YAML profile: one file describes cluster and job. Checked as a whole, every error with its place."""

from runner.profile.load import load, parse, parse_quickly, with_overrides, without_personal
from runner.profile.problems import ProfileErrors, ProfileProblem
from runner.profile.schema import Profile
from runner.profile.sections import Host, Job, Launch, Metrics, Parallel, Target
from runner.profile.source import ProfileText, read
from runner.profile.typed import parse_host

__all__ = [
    "Host", "Job", "Launch", "Metrics", "Parallel", "Profile", "ProfileErrors", "ProfileProblem", "ProfileText",
    "Target", "load", "parse", "parse_host", "parse_quickly", "read",
    "with_overrides",
    "without_personal",
]  # fmt: skip
