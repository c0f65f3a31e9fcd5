"""Hugging Face's folders and hub, and the tokenizers in them.

The rooms and commands of `convert` above `families` may import it.
"""
