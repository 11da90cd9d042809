"""What loop.py can do without: delete what you do not need.

bench        measure computing, data and all-reduce alone and together (--bench)
compression  send gradients with fewer bytes (--compress)
ema          test with the moving average of the weights (--ema)
local_sgd    average models now and then instead of gradients in every step (--local-sgd)
mixing       mixup and CutMix (--mixup, --cutmix)
profiler     record a trace of some steps (--profile-steps)
samples      let a language model continue a text (--sample-tokens)
"""
