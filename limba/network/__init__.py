"""Networks in Flax Linen, without losses and data: layers, T5, its decoder alone; encoders; kernels for accelerators.

Models, plan, run_pages and the converters may import it.
"""
