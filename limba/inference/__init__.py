"""Predictions and scores of a model, over batches, tasks and lines. Training and the commands may import it."""
