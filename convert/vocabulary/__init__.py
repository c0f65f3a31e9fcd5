"""The commands of `limba vocab` that give a trained model fewer pieces, and a T5 more, or others.

Nothing imports it but `limba/cli.py`, which starts the commands.
"""
