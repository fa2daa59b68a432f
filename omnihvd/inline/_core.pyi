from typing import Any

import numpy.typing as npt

MOST_WORKERS: int
BLOCK: int

class Server:
    def __init__(
        self,
        host: str,
        port: int,
        secret: str,
        group: str,
        jobs: int,
        slots: int,
        plane: int = 0,
        interface: int = 0,
    ) -> None: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def port(self) -> int: ...
    def counts(self) -> dict[str, int]: ...

class Client:
    def __init__(
        self,
        host: str,
        port: int,
        secret: str,
        session: int,
        rank: int,
        ranks: int,
        patience_s: float,
        workers_patience_s: float,
        numbers: int = 0,
    ) -> None: ...
    def sum(self, values: npt.NDArray[Any], dense: bool) -> None: ...
    def stats(self) -> dict[str, int]: ...
