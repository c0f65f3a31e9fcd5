"""The checks of `limba lint` that read tasks and data. Only `limba.commands.plan.lint` imports it."""
