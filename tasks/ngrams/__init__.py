"""N-grams of a corpus in a model's own pieces: what a model must beat, and where it can begin.

Rooms above `tasks.pipeline` may import it; the engine reaches it through `limba.inference.tasks_door`.
"""
