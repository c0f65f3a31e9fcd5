"""CTranslate2: the files of its models, and the proof by the engine. `to_ct2` imports it."""
