"""Training: trainer, loop, evaluation on the way, actions on metrics. The commands may import it."""
