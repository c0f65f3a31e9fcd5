"""The second check of a conversion: what transformers' own classes compute, beside NumPy's.

The core finds it by the table of add-ons; nothing imports it.
"""
