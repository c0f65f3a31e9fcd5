"""The keys of Hugging Face's scripts, as values that are checked.

The rooms that run them may import it: `limba.hf_script`, `limba.sweep`.
"""
