"""What needs SeqIO and TensorFlow: our tasks under SeqIO, and SeqIO's tasks as batches, examples and metrics.

The core asks for it by the table of add-ons (`seqio`, `seqio_registry`); nothing imports it.
"""

import tensorflow as tf

# The accelerators belong to JAX, in whatever reads a task.
if tf.config.get_visible_devices("GPU"):
    tf.config.set_visible_devices([], "GPU")
