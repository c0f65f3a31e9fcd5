"""Networks in Flax Linen, without losses and data: layers, T5, its decoder alone.

Models, encoders, plan, lint and the converters may import it.
"""
