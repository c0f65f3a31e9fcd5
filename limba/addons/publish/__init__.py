"""`limba convert all` and `push`: an export of every checkpoint of a run, and a folder on the Hugging Face hub.

The core finds the commands and the upload of `limba run` by the table of add-ons; nothing imports it.
"""
