"""On each rank, whatever launched it: what `omnihvd check --job` begins with."""

from __future__ import annotations

from omnihvd.check.ranks import gather, join_job

ranks = join_job()
for step in range(3):
    assert gather(ranks, [step, ranks.rank]) == [[step, rank] for rank in range(ranks.size)]
assert ranks.allgather(b"x" * ranks.rank) == [b"x" * rank for rank in range(ranks.size)]
print(f"all {ranks.size} well", flush=True)
ranks.end()
