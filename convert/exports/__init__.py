"""What `limba convert to-hf` writes for a kind of model: T5s, and encoders alone.

`convert.to_hf` imports it.
"""
