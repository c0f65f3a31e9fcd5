"""Predictions and scores of a model, over batches, tasks and lines; the door to tasks.

Training and the commands may import it.
"""
