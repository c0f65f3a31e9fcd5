"""SpacTor (arXiv:2401.13160): a T5's pre-training with replaced-token detection in its first steps.

gin/runs/spactor.gin names its model; nothing imports it.
"""
