"""Settings that must be in place before JAX, TensorFlow or transformers are imported: offline, CPU, eight devices."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["USE_TF"] = "0"  # transformers must not import TensorFlow
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
