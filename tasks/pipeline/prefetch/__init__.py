"""Batches that are made in advance, by a thread or by processes.

`tasks.pipeline` imports it: each of its readers opens one of the two.
"""
