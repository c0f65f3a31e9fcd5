"""The commands of `limba vocab` that give a trained T5 fewer pieces, more, or others.

Nothing imports it but `limba/cli.py`, which starts the commands.
"""
