"""Minimal pairs: a right sentence and a wrong one, scored by a model; and pairs made of treebanks.

The rooms of `tasks` above `pipeline`, and `limba.inference`, may import it. Task modules use these names.
"""

from tasks.minimal_pairs.pair_columns import PairColumns
from tasks.minimal_pairs.pairs_tasks import register_pairs_task

__all__ = ["PairColumns", "register_pairs_task"]
