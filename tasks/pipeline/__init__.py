"""From a registered task to batches: streams, logical readers, exact positions, examples for inference.

`tasks.cached`, `tasks.lint_tasks` and the engine's door may import it.
"""
