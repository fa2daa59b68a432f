"""The compressors that both frameworks train with."""

from omnihvd import compression

BLOCK = 16

COMPRESSORS = {
    "topk": compression.block_topk(0.1, BLOCK),
    "topk without feedback": compression.block_topk(0.1, BLOCK).with_error_feedback(False),
    "random": compression.block_random(0.1, 3, BLOCK),
    "threshold": compression.block_threshold(0.02, BLOCK),
    "elements": compression.topk_threshold(0.005),
    "sidco": compression.sidco(0.1, "pareto"),
    "dgc": compression.dgc(0.1),
    "randomk": compression.randomk(0.1),
    "adaptive": compression.adaptive(0.1),
    "momentum": compression.block_topk(0.1, BLOCK).with_momentum_correction(0.9),
    "warm-up": compression.block_topk(0.1, BLOCK).with_warmup(3, 0.9, steps_per_epoch=2),
}
