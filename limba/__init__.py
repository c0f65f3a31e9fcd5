"""Limba's engine: network, optimizer, partitioning, training and checkpoints.

Nothing in this package imports TensorFlow or SeqIO; data arrives through the contract in `limba.data.contract`.
"""

from limba.machine import repository
from limba.machine.version import VERSION as __version__  # noqa: F401

repository.claim()
