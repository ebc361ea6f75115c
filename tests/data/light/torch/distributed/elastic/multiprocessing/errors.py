from dataclasses import dataclass


@dataclass
class ProcessFailure:
    local_rank: int
    pid: int
    exitcode: int

    def __post_init__(self):
        pass


class ChildFailedError(Exception):
    pass
