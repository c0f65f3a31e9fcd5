"""Are two models the same? Parameters, logits, loss and greedy output, by several independent forward passes.

The room `t5x` and the commands of `convert` may import it.
"""
