"""All that needs SeqIO and TensorFlow: our tasks under SeqIO, and SeqIO's tasks as batches, examples and metrics.

`tasks.pipeline.task_batches`, `tasks.pipeline.predictions` and add-ons may import it, inside functions.
"""

import tensorflow as tf

# The accelerators belong to JAX, in whatever reads a task.
if tf.config.get_visible_devices("GPU"):
    tf.config.set_visible_devices([], "GPU")
