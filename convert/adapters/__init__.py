"""LoRA adapters as PEFT keeps them: `adapter_config.json` and `adapter_model.safetensors`, written and read.

Only the commands `to-peft` and `from-peft` may import it.
"""
