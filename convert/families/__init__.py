"""The families of models that are converted: one file a family, one row in `table.py`; and what their config.json says.

The rooms and commands of `convert` above `tensors` may import it.
"""
