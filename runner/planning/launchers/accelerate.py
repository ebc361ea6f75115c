"""Scripts that use Accelerate or HF Trainer, under torchrun or by `accelerate launch` itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disttui.runner.planning.launchers import torchrun
from disttui.runner.planning.launchers.place import Launcher, Place, Reasoned, Refusal
from disttui.runner.profile import Profile
from disttui.runner.train.layout import Flaw, Layout, Sizes, settle

_MIXED_PRECISION = {"fp32": "no"}
"""Our words for precision → Accelerate's, where they differ."""
_SIZES = ("dp_replicate", "dp_shard", "tp", "cp")


def settings(place: Place) -> Mapping[str, Reasoned]:
    """What the profile gives, not what is left to `auto`: there the script decides."""
    profile, found = place.profile, dict[str, Reasoned]()
    if profile.job.builtin:
        return found
    if profile.precision != "auto":
        value = _MIXED_PRECISION.get(profile.precision, profile.precision)
        found["ACCELERATE_MIXED_PRECISION"] = Reasoned(value, f"precision: {profile.precision}")
    layout = _layout(profile, place.counts)
    if isinstance(layout, Layout) and _sized(profile):
        why = f"parallel: {layout}"
        found["ACCELERATE_USE_PARALLELISM_CONFIG"] = Reasoned("true", why)
        for name in _SIZES:
            found[f"PARALLELISM_CONFIG_{name.upper()}_SIZE"] = Reasoned(str(getattr(layout, name)), why)
    if isinstance(layout, Layout) and (layout.dp_shard > 1 or layout.cp > 1):
        why = f"parallel: {layout}" if _sized(profile) else f"parallel.strategy: {profile.parallel.strategy}"
        found["ACCELERATE_USE_FSDP"] = Reasoned("true", why)
        found["FSDP_VERSION"] = Reasoned("2", why)
    return found


def layout_refusal(profile: Profile, counts: Mapping[str, int], backend: str) -> Refusal | None:
    """Sizes that do not fit the processes, and what Accelerate does on GPUs alone."""
    if profile.job.builtin:
        return None
    layout = _layout(profile, [*counts.values()])
    if isinstance(layout, Flaw):
        return Refusal(f"parallel: {layout.what}", layout.cure)
    if backend == "gloo" and (layout.strategy != "ddp" or _sized(profile)):
        given = f"{layout}" if _sized(profile) else layout.strategy
        # It trains with DDP where only FSDP is asked for, and raises an exception where sizes are given.
        what = f"parallel asks for {given}, and Accelerate divides models on GPUs only"
        return Refusal(what, "Leave `parallel` out on CPUs, or take a script that divides its model itself")
    return None


def _sized(profile: Profile) -> bool:
    return profile.parallel.strategy == "hsdp" or any(getattr(profile.parallel, name) for name in Sizes._fields)


def _layout(profile: Profile, counts: Sequence[int]) -> Layout | Flaw:
    sizes = Sizes(**{name: getattr(profile.parallel, name) for name in Sizes._fields})
    return settle(sizes, profile.parallel.strategy, counts)


class Accelerate(torchrun.Torchrun):
    """torchrun with variables that Accelerate reads its settings from.

    Unlike `accelerate launch`, this starts unequal numbers of processes, and no host trains alone.
    """

    def variables(self, place: Place) -> Mapping[str, Reasoned]:
        return settings(place)

    def refusal(self, profile: Profile, counts: Mapping[str, int], backend: str) -> Refusal | None:
        return layout_refusal(profile, counts, backend)


class AccelerateLaunch(Launcher):
    """`accelerate launch`, once on each host. It gives every machine as many processes."""

    PART = "accelerate-launch"

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        """Options.

        `--multi_gpu` on CPUs as well, where ACCELERATE_USE_CPU says the rest: with `--cpu` each host would train alone.
        """
        given = settings(place).get("ACCELERATE_MIXED_PRECISION")
        several = ("--multi_gpu",) if place.world_size > 1 else ("--cpu",) if place.backend == "gloo" else ()
        return (
            *several,
            "--num_machines", str(len(place.counts)),
            "--num_processes", str(place.world_size),
            "--machine_rank", str(place.node_rank),
            "--mixed_precision", given.value if given else "no",
            "--dynamo_backend", "no",
            "--rdzv_backend", "static",
            "--rdzv_conf", f"timeout={torchrun.RENDEZVOUS_TIMEOUT}",
            "--max_restarts", "0",
            "--same_network",
        )  # fmt: skip

    def variables(self, place: Place) -> Mapping[str, Reasoned]:
        """The profile's parallel settings; `accelerate launch` leaves them to the script as they are."""
        return {name: one for name, one in settings(place).items() if name != "ACCELERATE_MIXED_PRECISION"}

    def by_hand(self, place: Place) -> tuple[str, ...]:
        address = ("--main_process_ip", place.master, "--main_process_port", str(place.port))
        words = (place.python, "-m", "accelerate.commands.launch", *self.launcher_args(place), *address)
        return (*place.around, *words, *torchrun.job_in_other_words(place))

    def refusal(self, profile: Profile, counts: Mapping[str, int], backend: str) -> Refusal | None:
        """Unequal hosts, since it divides the total by the machines and silently drops the rest; and what Accelerate
        cannot divide."""
        if len(set(counts.values())) == 1:
            return layout_refusal(profile, counts, backend)
        shown = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:6])
        return Refusal(
            f"accelerate launch gives every host as many processes, and num_processes is unequal: {shown}",
            "Set launch.launcher to accelerate, which allows it, or give all hosts the same num_processes",
        )
