"""Methods, one a page: pure functions over flat arrays. Rules for elements work on PyTorch's and
NumPy's arrays alike, by `call.ops`; codes are NumPy's."""
