"""Networks in Flax Linen, without losses and data: layers, T5, its decoder alone; encoders; kernels for accelerators.

Models, plan and the converters may import it.
"""
