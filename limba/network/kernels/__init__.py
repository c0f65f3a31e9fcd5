"""Programs for accelerators that XLA does not find by itself, compared with XLA before their use.

Networks and losses may import it.
"""
