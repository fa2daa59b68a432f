"""Random jobs in real processes under faults, and their oracle (benchmarks/faults.md)."""
