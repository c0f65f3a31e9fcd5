"""Tasks that are ready to run, and what writes their corpora; each has recipes in gin/recipes/ and a script in launch/.

`blank_sentences` is for cards and for what a model has learned. The engine's door, `tasks.lint` and `convert.exports`
may import it.
"""
