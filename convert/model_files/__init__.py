"""A model on disk as one `Model`, whichever format keeps it: Limba, T5X or Hugging Face.

The rooms and commands of `convert` above `families` may import it.
"""
