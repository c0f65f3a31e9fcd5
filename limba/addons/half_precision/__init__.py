"""`limba convert check MODEL --dtype float16`: which layers overflow, and a T5 that computes the same and holds.

The core's check asks `check_dtype.py` by the table of add-ons; nothing imports it.
"""
