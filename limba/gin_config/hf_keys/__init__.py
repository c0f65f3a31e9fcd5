"""The keys of Hugging Face's scripts, as values that are checked.

`limba.commands.hf_script` and `limba.commands.sweep` may import it.
"""
