"""Limba's engine: network, optimizer, partitioning, training and checkpoints.

Nothing in this package imports TensorFlow or SeqIO; data arrives through the contract in `limba.data.contract`.
"""

from limba.files import repository
from limba.files.version import VERSION as __version__  # noqa: F401
from limba.gin_config import old_names

old_names.install()
repository.claim()
