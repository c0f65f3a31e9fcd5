"""Instructions: files of them, and tasks that read them. `tasks.supervised` imports it for its names."""
