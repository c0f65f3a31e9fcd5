"""Networks in Flax Linen, without losses and data: T5, its decoder alone, and encoders such as BERT.

Models, plan, lint and the converters may import it.
"""
