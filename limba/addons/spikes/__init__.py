"""Spikes of the loss: a run that has one, or NaN, goes back to a checkpoint and past the batches in between.

The core finds it by the table of add-ons; nothing imports it.
"""
