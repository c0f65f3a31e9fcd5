"""The keys of Hugging Face's scripts, as values that are checked.

`limba.hf_script` and `limba.sweep` may import it.
"""
