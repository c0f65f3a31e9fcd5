"""What `limba convert to-hf` writes for a kind of model: T5s, and encoders alone; and the card of the folder.

`convert.to_hf` imports it.
"""
