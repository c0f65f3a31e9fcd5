"""Tasks whose words have labels, such as the names in a text (NER), for encoders.

Users know the names as those of `tasks.supervised`, which has them by the table of add-ons; nothing imports it.
"""
