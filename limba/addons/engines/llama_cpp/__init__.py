"""GGUF files of T5s: written, read back, and computed as llama.cpp does. `limba.addons.engines.to_gguf` imports it."""
