"""Block-sparse attention of encoders, in BigBird's layout with DeepSpeed's fields, and its kernels.

The core finds it by the table of add-ons; gin files name its configuration; nothing imports it.
"""
