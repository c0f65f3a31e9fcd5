"""The keys of Hugging Face's scripts, as values that are checked.

`limba.addons.run` and `limba.addons.sweep` may import it.
"""
