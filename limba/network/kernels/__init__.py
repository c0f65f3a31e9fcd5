"""What calls programs for accelerators, of add-ons, and compares them with XLA before their use; a loss in chunks.

Networks and losses may import it.
"""
