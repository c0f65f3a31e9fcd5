"""LongT5 (arXiv:2112.07916): T5 1.1 whose encoder attends to a window, and perhaps to sums of blocks.

The core finds its family by the table of add-ons; gin files name its configuration; nothing imports it.
"""
