"""From a registered task to batches: streams, logical readers, exact positions, examples for inference.

`task_batches` opens a task for training, `predictions` for inference. `tasks.lint`, `tasks.preview` and the engine's
door may import it.
"""
