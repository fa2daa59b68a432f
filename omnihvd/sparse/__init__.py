"""Sparse gradients (embeddings) without allgathering their values.

Horovod sends a sparse gradient by allgather: every rank gets every other rank's rows, duplicates
and all, so memory and time grow with the number of ranks. With `compression=OmniReduce`, omnihvd
gathers the row numbers only, and sums the union of the rows, duplicates merged, as one dense
matrix: in it, a rank's missing rows are zero blocks, which cost nothing on the wire. The result is
the sparse gradient of the union, with ascending row numbers.
"""
