"""The user's own Python modules: their import, T5X's names in them, messages if they fail.

Every room but the machine, whose files it uses, may import it.
"""
