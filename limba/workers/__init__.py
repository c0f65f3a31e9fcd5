"""The processes of a run: they join, compare their code, watch each other, and stop when they are asked to.

The engine above and the commands may import it.
"""
