"""The checks of `limba lint` that read tasks and data. Only `limba.plan.lint` imports it."""
