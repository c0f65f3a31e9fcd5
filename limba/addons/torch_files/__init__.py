"""Weights in PyTorch's own files, `pytorch_model.bin`, which are pickles.

The core finds them by the table of add-ons; nothing imports it.
"""
