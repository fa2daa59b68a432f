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


class Largest:
    """Values and places of the largest `k`, more on later ranks: sizes that are not the same."""

    average = True
    tensors_size_are_same = False

    def __init__(self, k):
        self.k = k

    def compress(self, tensor, name):
        flat = tensor.reshape(-1)
        places = flat.abs().topk(min(self.k, len(flat))).indices
        return [flat[places], places], tensor.shape

    def decompress(self, tensors, ctx):
        values, places = tensors
        return values.new_zeros(ctx.numel()).index_add_(0, places, values).view(ctx)

    def aggregate(self, tensors):
        return sum(tensors)


class Median(Halves):
    """Not a sum: of what each rank sent, the median of each element."""

    def __init__(self, median):
        super().__init__(1.0)
        self.average, self._median = False, median

    def aggregate(self, tensors):
        return self._median(tensors)
