"""Tasks tokenized once, into files that any number of hosts read by index.

`limba cache` writes them, gin files bind their readers; nothing imports it.
"""
