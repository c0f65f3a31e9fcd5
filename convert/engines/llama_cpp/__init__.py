"""GGUF files of T5s: written, read back, and computed as llama.cpp does. `convert.to_gguf` imports it."""
