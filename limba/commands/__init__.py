"""Commands whose functions no gin file of a run names, except those of `serve`; each in a folder, or in a file.

Nothing below imports them: `limba/cli.py` finds them by a table of texts. `benchmarks/` may import it.
"""
