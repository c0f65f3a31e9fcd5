"""Networks in Flax Linen, without losses and data. Models, plan, lint and the converters may import it."""
