"""How a run is told what to do: gin files, T5X's names, old names, the user's modules, keys of Hugging Face's scripts.

Every room but the files, data, devices and workers may import it.
"""
