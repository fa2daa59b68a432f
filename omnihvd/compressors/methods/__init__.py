"""Rules for elements, one a page: the same code for PyTorch and TensorFlow, by `call.ops`."""
