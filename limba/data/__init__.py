"""The contract between data and engine; sentinels; findings of lint. Every room may import it, `tasks` included.

It imports neither `tasks` nor JAX.
"""
