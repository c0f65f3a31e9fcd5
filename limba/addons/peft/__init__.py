"""LoRA adapters as PEFT keeps them, written and read. Only `limba convert` imports it."""
