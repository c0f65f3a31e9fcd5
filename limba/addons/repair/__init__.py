"""What is wrong with a model's folder, and the folder without it. Only `limba convert` imports it."""
