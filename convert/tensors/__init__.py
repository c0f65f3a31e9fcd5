"""Tensors in files: safetensors, msgpack, PyTorch's; in parts, in shards, and their names in each library.

The rooms and commands of `convert` may import it.
"""
