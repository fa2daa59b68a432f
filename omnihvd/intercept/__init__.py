"""Hooks into Horovod's and PyTorch's modules: at their import, initialization and steps."""
