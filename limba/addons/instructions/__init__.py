"""Instructions: files of them, tasks that read them, and the speedrun that ends with them.

Users' modules say `tasks.supervised.register_instruction_task`, which the table of add-ons leads here; nothing
imports it.
"""
