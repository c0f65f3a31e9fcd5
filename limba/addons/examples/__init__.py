"""Tasks that are ready to run, and what writes their corpora; each has recipes in gin/recipes/ and a script in launch/.

Gin files and `--module` name these modules; no other room may import it.
"""
