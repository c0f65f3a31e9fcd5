"""Hugging Face's encoders: which class holds a network, its tensors, configuration and tokenizer.

The rooms and commands of `convert` above it may import it.
"""
