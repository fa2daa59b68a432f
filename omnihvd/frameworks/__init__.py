"""Horovod's and PyTorch's own modules: when they are imported, begin and step."""
