"""LoRA adapters as PEFT keeps them: `adapter_config.json` and `adapter_model.safetensors`, written and read.

The commands `to-peft` and `from-peft` import it.
"""
