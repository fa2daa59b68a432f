"""The laboratory: hosts of its own with shaped links, all peers, each in its best setting."""
