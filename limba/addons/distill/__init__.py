"""Distillation: a small T5, the student, learns the probabilities of a larger one, the teacher.

At each target token the student learns the token itself, and the probabilities of the tokens that the teacher finds
likely (arXiv:1503.02531). It may begin with some of the teacher's layers. Gin files name this room; nothing imports it.
"""
