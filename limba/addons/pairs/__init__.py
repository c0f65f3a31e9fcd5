"""Minimal pairs: a right sentence and a wrong one, scored by a model; and pairs made of treebanks.

Task modules use these names; no other room may import it.
"""

from limba.addons.pairs.pair_columns import PairColumns
from limba.addons.pairs.pairs_tasks import register_pairs_task

__all__ = ["PairColumns", "register_pairs_task"]
