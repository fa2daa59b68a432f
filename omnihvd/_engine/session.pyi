from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray

from .codec import Codec

dtypes: list[str]

Allgather = Callable[[bytes], list[bytes]]

class OwnProcess:
    def __init__(self) -> None: ...
    def is_this(self) -> bool: ...
    def check(self) -> None: ...

class Settings:
    def __init__(self) -> None: ...
    enable: bool
    min_bytes: int
    block_size: int
    message_bytes: int
    slots: int
    streams: int
    scan_ahead: int
    spin_us: int
    way: str
    gpu: str
    gpu_chunk_bytes: int
    gpu_min_bytes: int
    polite: bool
    deterministic: bool
    hierarchy: str
    compress_first: bool
    host_id: str
    kernel_cache: str
    aggregators: list[str]
    secret: str
    secret_file: str
    encrypt: bool
    timeout_s: float
    join_timeout_s: float | None
    stall_warning_s: float
    trace: str
    stats: str
    metrics: str
    watchable: bool
    log: str

def settings_from_environment() -> Settings: ...
def setting_docs() -> list[tuple[str, str, str, str]]: ...
def stats() -> dict[str, Any]: ...
def summary(original: str) -> str: ...
def count_pass(reason: Reason, bytes: int) -> None: ...
def meeting_patience_s() -> float: ...
def stop(original: str) -> None: ...
def count_rows(own_bytes: int, gathered_bytes: int, union_bytes: int, dense_bytes: int) -> None: ...
def set_log_rank(rank: int) -> None: ...
def keep_calls() -> None: ...
def take_calls() -> list[dict[str, Any]]: ...
def last_ranks() -> dict[int, int]: ...
def hosts_of_groups() -> set[str]: ...
def write_trace() -> None: ...
def last_error() -> str: ...

class Group:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def allreduce(
        self,
        input: NDArray[Any],
        output: NDArray[Any],
        dtype: str = "",
        codec: Codec = ...,
    ) -> int: ...

class Engine:
    def __init__(self, settings: Settings) -> None: ...
    def join(self, rank: int, size: int, allgather: Allgather) -> Group: ...
    def describe_transport(self) -> str: ...

class AggregatorHost:
    def __init__(self, settings: Settings) -> None: ...
    def addresses(self) -> list[bytes]: ...
    def admit(self, description: bytes, secret: str) -> None: ...

class Library(Protocol):
    def allgather(self, mine: bytes, /) -> list[bytes]: ...
    def sum(self, view: memoryview, dtype: str, /) -> None: ...
    def unite(self, view: memoryview, /) -> None: ...
    def tell(self, view: memoryview, /) -> None: ...

class Reason:
    none: Reason
    invalid: Reason
    empty: Reason
    op: Reason
    control: Reason
    dtype: Reason
    layout: Reason
    large: Reason
    inter_communicator: Reason
    captured: Reason
    simulated: Reason
    one_rank: Reason
    disabled: Reason
    small: Reason
    device_memory: Reason
    several_ranks_in_a_process: Reason
    one_host: Reason
    original: Reason
    driver: Reason
    queues: Reason
    blocking: Reason
    loading: Reason
    kernels: Reason
    memory: Reason

class Communicator:
    def __init__(self, rank: int, size: int, timeout_s: float) -> None: ...
    def meet(self, allgather: Allgather) -> None: ...
    def refusal(self, bytes: int, any_size: bool = False) -> Reason: ...
    def sum(
        self, data: int, count: int, dtype: str, library: Library, codec: Codec = ...
    ) -> None: ...
