"""T5Gemma and T5Gemma 2, to and from Hugging Face, and from a decoder of Gemma.

The core finds the two families by the table of add-ons, and the command line `from-gemma`; nothing else imports it.
"""
