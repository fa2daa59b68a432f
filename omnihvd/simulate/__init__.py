"""Sums of thousands of ranks, by the engine's own protocol, over a simulated network."""
