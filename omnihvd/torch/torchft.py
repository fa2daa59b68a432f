"""torchft's process group on Gloo, whose allreduce is omnihvd's: replicas come and go.

    from omnihvd.torch.torchft import ProcessGroupOmnihvd
    manager = torchft.Manager(pg=ProcessGroupOmnihvd(timedelta(seconds=10)), ...)

What the manager averages then sends non-zero blocks only: the outer gradients of DiLoCo, the
parameters of LocalSGD, the buckets of torchft's DDP. With each quorum torchft makes the group anew.
"""

from __future__ import annotations

from typing import Any

import torch
import torchft.process_group as torchft
from torch.distributed import ProcessGroup, ProcessGroupGloo

from omnihvd.torch.process_group import OmnihvdProcessGroup, give_sums


class ProcessGroupOmnihvd(torchft.ProcessGroupGloo):
    """As torchft.ProcessGroupGloo, of tensors on the CPU; timeout: of a sum, and of the making of
    a group. A replica that dies in a sum is an error of that sum on the others, which the manager
    answers with another quorum."""

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
