"""The names of `t5` that T5X's task modules import: preprocessors, vocabularies, TFExample files.

Nothing imports it: it is reached through the names of `t5` and `t5x` (`limba.gin_config.t5x_names`).
"""
