"""`DatasetConfig.num_workers`: readers in processes of their own.

The core finds it by the table of add-ons; nothing imports it.
"""
