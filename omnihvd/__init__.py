"""omnihvd: allreduce of the non-zero blocks only, under an unmodified Horovod.

    from omnihvd import OmniReduce
    optimizer = hvd.DistributedOptimizer(optimizer, ..., compression=OmniReduce)

Import it on every rank before `hvd.init()`; from then on Horovod's sums on the CPU go through
omnihvd, in this process, wherever it can take them (`omnihvd.stats()` tells). OMNIHVD_ENABLE=0
leaves Horovod alone. All settings: `omnihvd check --settings`.
"""

from omnihvd.tools import checkout

if not checkout.gave_way():
    from omnihvd import report, takeover
    from omnihvd.carriers import nccl as nccl_hooks  # whose way() had this name first
    from omnihvd.compression import OmniReduce
    from omnihvd.statistics import Statistics, log_dict, stats
    from omnihvd.version import __version__ as __version__

    __all__ = ["OmniReduce", "Statistics", "log_dict", "nccl_hooks", "report", "stats"]

    takeover.install()
