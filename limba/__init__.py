"""Limba's engine: network, optimizer, partitioning, training and checkpoints.

Nothing in this package imports TensorFlow or SeqIO; data arrives through the contract in `limba.data.contract`.
"""

from limba.machine import repository

__version__ = "0.1.0"

repository.claim()
