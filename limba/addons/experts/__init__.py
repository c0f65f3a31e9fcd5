"""Switch Transformers (arXiv:2101.03961), T5s with experts: in some layers, each token has one of several MLPs.

The core finds their family by the table of add-ons; gin files name their network; nothing imports it.
"""
