"""The model card of an exported folder: its text, metadata and examples.

`limba convert to-hf` asks for it by the table of add-ons; nothing imports it.
"""
