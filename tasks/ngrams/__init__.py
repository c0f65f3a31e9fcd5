"""N-grams of a corpus in a model's own pieces: what a model must beat, and where it can begin.

`tasks.pipeline` imports it, and counts the texts of tasks with it.
"""
