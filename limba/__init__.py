"""Limba's engine: network, optimizer, partitioning, training and checkpoints.

Nothing in this package imports TensorFlow or SeqIO; data arrives through the contract in `limba.data.contract`.
"""

# First of all: it takes the working directory off Python's path.
from limba.files import python_path  # noqa: F401

# isort: split
from limba.addons import table
from limba.files import repository
from limba.files.version import VERSION as __version__  # noqa: F401

repository.claim(table.other_names())
