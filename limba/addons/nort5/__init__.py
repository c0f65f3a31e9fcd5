"""NorT5 (Samuel et al., NoDaLiDa 2023), the encoder-decoder that HPLT trained for 57 languages.

The core finds its family by the table of add-ons; gin files name its network and its objective; nothing imports it.
"""
