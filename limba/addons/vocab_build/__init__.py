"""`limba vocab build`: a vocabulary of a corpus, SentencePiece for T5, WordPiece or byte-level BPE for BERT.

The core finds the command by the table of add-ons; nothing imports it.
"""
