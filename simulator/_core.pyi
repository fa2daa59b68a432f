from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

class Costs:
    def __init__(
        self,
        *,
        rate: float,
        core_rate: float,
        delay: float,
        message_s: float,
        byte_s: float,
        inspected_s: float,
        begin_s: float,
        cores: int,
    ) -> None: ...

class Job:
    def __init__(
        self,
        *,
        workers: int,
        dedicated: int,
        shares: int,
        fans: list[int],
        bytes: int,
        block_bytes: int,
        message_bytes: int,
        slots: int,
        streams: int,
        scan_ahead: int,
        loss: float,
        late_s: float,
        goal: bool,
        has: NDArray[Any],
    ) -> None: ...

def run_bad_session(seed: int, long_sums: bool = False) -> dict[str, Any]: ...
def fans_of(levels: str, ranks: int, dedicated: int) -> list[int]: ...
def shares_of(ranks: int, dedicated: int, fans: list[int], windows: int) -> int: ...
def streams_for(link_bytes_per_s: float, cores: int) -> int: ...
def simulate(
    job: Job, costs: Costs, progress: Callable[[float], object] | None = None
) -> dict[str, Any]: ...
