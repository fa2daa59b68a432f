"""The compressors that both frameworks train with."""

from omnihvd import compressors

BLOCK = 16

COMPRESSORS = {
    "topk": compressors.block_topk(0.1, BLOCK),
    "topk without feedback": compressors.block_topk(0.1, BLOCK).with_error_feedback(False),
    "random": compressors.block_random(0.1, 3, BLOCK),
    "threshold": compressors.block_threshold(0.02, BLOCK),
    "elements": compressors.topk_threshold(0.005),
    "sidco": compressors.sidco(0.1, "pareto"),
    "dgc": compressors.dgc(0.1),
    "randomk": compressors.randomk(0.1),
    "adaptive": compressors.adaptive(0.1),
    "momentum": compressors.block_topk(0.1, BLOCK).with_momentum_correction(0.9),
    "warm-up": compressors.block_topk(0.1, BLOCK).with_warmup(3, 0.9, steps_per_epoch=2),
}
