"""config.json of T5s and encoders, read and written without transformers; and what is none that is converted.

The rooms and commands of `convert` above `tensors` may import it.
"""
