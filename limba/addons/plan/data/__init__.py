"""The checks of `limba lint` that read tasks and data. Only `limba.addons.plan.lint` imports it."""
