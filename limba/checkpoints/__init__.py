"""Saving and restoring a run. Inference, training, the commands and `convert.to_hf` may import it."""
