"""Checkpoints in T5X's formats, and runs made of foreign models.

The commands of `convert` may import it.
"""
