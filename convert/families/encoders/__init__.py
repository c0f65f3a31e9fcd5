"""The families of encoders: one file a family, one row in `../table.py`.

The rooms and commands of `convert` above `tensors` may import it.
"""
