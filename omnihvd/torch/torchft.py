"""torchft's process group on Gloo, with omnihvd's allreduce: replicas come and go.

    from omnihvd.torch.torchft import ProcessGroupOmnihvd
    manager = torchft.Manager(pg=ProcessGroupOmnihvd(timedelta(seconds=10)), ...)

The manager's averages then send non-zero blocks only: the outer gradients of DiLoCo, the parameters
of LocalSGD, the buckets of torchft's DDP. torchft makes a new group with each quorum.
"""

from __future__ import annotations

from typing import Any

import torch
import torchft.process_group as torchft
from torch.distributed import ProcessGroup, ProcessGroupGloo

from omnihvd.torch.process_group import OmnihvdProcessGroup, give_sums


class ProcessGroupOmnihvd(torchft.ProcessGroupGloo):
    """Like torchft.ProcessGroupGloo, for tensors on the CPU. timeout: of a sum, and of making a
    group. If a replica dies during a sum, the sum raises an error on the others, and the manager
    forms another quorum."""

    def _create_pg(self, store: Any, rank: int, world_size: int) -> ProcessGroup:
        group = OmnihvdProcessGroup(store, rank, world_size)
        gloo = ProcessGroupGloo(store, rank, world_size, self._timeout)
        gloo._set_sequence_number_for_group()
        group._set_default_backend(ProcessGroup.BackendType.GLOO)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
        give_sums(group)
        return group

    def getBackendName(self) -> str:
        return "torchft-omnihvd"
