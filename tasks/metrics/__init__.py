"""Metrics of lists of targets and of predictions: texts, classes, numbers, labels of words, choices that are ranked.

All rooms of `tasks` may import it.
"""
