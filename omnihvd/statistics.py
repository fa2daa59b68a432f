"""What omnihvd has done in this process."""

from __future__ import annotations

from typing import Any

from omnihvd import compressors, engine


def stats() -> dict[str, Any]:
    """Totals of this process since its start; differences of two calls measure what lies between.

    calls             allreduces that omnihvd took; of them `failures` ended in an error
    bytes_in          bytes of their tensors
    bytes_sent        bytes to other processes, as contributions and as sums, headers included;
    bytes_received    and from them, in messages_sent messages
    blocks            blocks of their tensors; of them `nonzero_blocks` were not zero on this rank,
                      and `result_blocks` not zero on any
    seconds           from call to result, summed over calls
    messages_refused  from strangers, of other versions, or malformed
    naps              times that waiting threads of Horovod and Open MPI slept instead of polling;
    nap_seconds       the time that they left their cores to others, summed over threads
    passed            calls left to the original library: {reason: {"calls": n, "bytes": n}}
    compression       of lossy compressors: see omnihvd.compressors.stats()
    """
    return {**engine.session.stats(), "compression": compressors.stats()}
