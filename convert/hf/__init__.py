"""Hugging Face's folders and hub: configuration, tokenizer, weights, model card.

The rooms and commands of `convert` above `tensors` may import it.
"""
