"""Are two models the same? Parameters, logits, loss and greedy output, by several independent forward passes.

The rooms `t5x` and `exports` and the commands of `convert` may import it.
"""
