"""Compressors and a memory with the interface of GRACE, for either framework."""


class Signs:
    """Votes of a majority: the sign of the sum of signs."""

    average = False
    tensors_size_are_same = True

    def __init__(self, sign):
        self._sign = sign

    def compress(self, tensor, name):
        return [self._sign(tensor)], None

    def decompress(self, tensors, ctx):
        return tensors[0]

    def aggregate(self, tensors):
        return self._sign(sum(tensors))


class Halves:
    """Half of each element; so that a memory keeps the other half."""

    average = True

    def __init__(self, factor=0.5):
        self.factor = factor

    def compress(self, tensor, name):
        return [tensor * self.factor], tensor.shape

    def decompress(self, tensors, ctx):
        return tensors[0]


class Residual:
    def __init__(self):
        self.residuals = {}

    def compensate(self, tensor, name):
        return tensor + self.residuals.get(name, 0)

    def update(self, tensor, name, compressor, tensors, ctx):
        self.residuals[name] = tensor - compressor.decompress(tensors, ctx)
