"""Files of rows, of which only some columns are read: whatever the others hold cannot stop a corpus.

It knows open files only, and `tasks.sources` imports it.
"""
