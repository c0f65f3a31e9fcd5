"""What happens to each key of the JSON files of a Hugging Face folder: one table for a file of a kind of model.

The rooms and commands of `convert` above it may import it.
"""
