"""The model card of an exported folder: its text, metadata, examples and picture of the loss.

The exports, `convert.to_hf` and `limba.commands.sweep` may import it.
"""
