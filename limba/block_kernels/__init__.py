"""Fused attention with a layout of blocks, for rows of thousands of tokens on accelerators.

Encoders may import it.
"""
