"""A small T5 that learns what a larger one expects: distillation.

The larger model, the teacher, says of each target token which tokens it finds likely; the smaller one, the student,
learns these probabilities beside the token itself (arXiv:1503.02531). It may begin with some of the teacher's layers.
Gin files name it; nothing imports it.
"""
