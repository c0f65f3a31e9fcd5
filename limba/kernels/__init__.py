"""Programs for accelerators that XLA does not find by itself, and what device a program is traced for.

Networks, losses and optimizers may import it.
"""
