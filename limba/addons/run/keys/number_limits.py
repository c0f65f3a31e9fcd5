"""The limits of keys that are numbers."""

from collections.abc import Mapping

LEAST: Mapping[str, float] = {
    **dict.fromkeys(("max_seq_length", "per_device_train_batch_size", "per_device_eval_batch_size"), 1),
    **dict.fromkeys(("gradient_accumulation_steps", "max_target_length"), 1),
    **dict.fromkeys(("val_max_target_length", "generation_max_length"), 1),
    **dict.fromkeys(("max_train_samples", "max_eval_samples", "max_predict_samples"), 1),
    **dict.fromkeys(("generation_num_beams",), 1),
    **dict.fromkeys(("data_seed", "label_smoothing_factor", "early_stopping_threshold"), 0),
    **dict.fromkeys(("num_training_steps", "early_stopping_patience"), 1),
    **dict.fromkeys(("clip_grad_value", "lr_drop_patience", "lr_drop_threshold", "lr_drop_min_lr"), 0),
    **dict.fromkeys(("warmup_steps", "warmup_ratio", "weight_decay", "max_grad_norm"), 0),
    "learning_rate": 0,
    **dict.fromkeys(("seed", "adam_beta1", "adam_beta2", "adam_epsilon"), 0),
    "mean_noise_span_length": 1,
}
# Values are below these.
BELOW: Mapping[str, float] = {
    "adam_beta1": 1,
    "adam_beta2": 1,
    "label_smoothing_factor": 1,
    "seed": 2**32,
    "data_seed": 2**32,
}
