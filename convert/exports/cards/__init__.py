"""The model card of an exported folder: its text, metadata, examples and picture of the loss.

The exports, `convert.to_hf` and add-ons may import it.
"""
