"""From a registered task to batches: streams, logical readers, exact positions, examples for inference.

`task_batches` opens a task for training, `predictions` for inference. `tasks.preview`, the engine's door and add-ons
may import it.
"""
