"""N-grams of a run's training texts beside its evaluations.

The core finds it by the table of add-ons; nothing imports it.
"""
