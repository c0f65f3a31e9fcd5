"""Readers in processes of their own, and the closing of all readers before Python ends.

`tasks.pipeline` imports it: `readers.py` has the readers in threads.
"""
