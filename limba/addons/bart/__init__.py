"""BART and mBART (arXiv:1910.13461, 2001.08210): encoder-decoders with learned positions, norms with biases, GELU.

The core finds their families by the table of add-ons; gin files name their network; nothing imports it.
"""
