"""omnihvd: an allreduce that sends non-zero blocks only, under an unmodified Horovod.

    from omnihvd import OmniReduce
    optimizer = hvd.DistributedOptimizer(optimizer, ..., compression=OmniReduce)

Import it on every rank before `hvd.init()`. From then on omnihvd intercepts this process's Horovod
allreduces on the CPU and computes those that it supports; `omnihvd.stats()` counts them and the
fallbacks to Horovod's own library. OMNIHVD_ENABLE=0 disables the interception. All settings:
`omnihvd check --settings`.
"""

from omnihvd.tools import checkout

if not checkout.gave_way():
    from omnihvd import old_names, report
    from omnihvd.compression import OmniReduce
    from omnihvd.intercept import install
    from omnihvd.intercept import nccl as nccl_hooks  # the older home of way()
    from omnihvd.statistics import Statistics, log_dict, stats
    from omnihvd.version import __version__ as __version__

    __all__ = ["OmniReduce", "Statistics", "log_dict", "nccl_hooks", "report", "stats"]

    old_names.install()
    install.install()
