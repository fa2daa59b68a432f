"""Random jobs in real processes under faults, and an oracle that judges them (README.md)."""
