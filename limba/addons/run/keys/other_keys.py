"""Keys of Hugging Face's scripts and of t5-experiments beside those of `Request`: one table for the messages, for
`limba run --help` and for docs/run_keys.md.

A key has no effect here at any value (`WITHOUT_EFFECT`), or asks for something that is not here, unless it has one of
the values that ask for nothing (`REFUSED`).
"""

from collections.abc import Mapping
from typing import Any

_STREAMED = "text is tokenized and masked while it is read, and there is no cache"
_RESUMES = "a run resumes at its exact place in the data, with all that it had"
_SHARDED = "JAX splits the batch over all devices, and gradients are summed by XLA"
_COMPILED = "everything is compiled by XLA"
_LOGS = "the log and metrics.jsonl have loss, rate and tokens a second"
_DEVICES = "JAX takes the accelerator that is there, with all its devices; JAX_PLATFORMS=cpu forbids it"
_ANSWERS = "answers are generated wherever a task has metrics of them"
_LENGTHS = "rows are full, or padded to one length"
_LANGUAGES = "the scripts read them for mBART and its like alone; a T5 is told the language by source_prefix"
_SUMS = "an evaluation keeps sums, and gathers nothing"
_SAME_PRECISION = "evaluation computes as training does"
_ONLY_HALF = "it says how float16 is computed, which fp16 would ask for"
_CHECKPOINTS = "a checkpoint has all that a resumed run needs, written once for all processes"
_TRACKIO = "TRACKIO_PROJECT and TRACKIO_SPACE_ID name them (docs/trackers.md); nothing is sent to a Space without"
WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(("preprocessing_num_workers", "overwrite_cache", "keep_linebreaks"), _STREAMED),
    **dict.fromkeys(
        ("dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers"), _STREAMED
    ),
    **dict.fromkeys(("dataloader_in_order", "dataloader_multiprocessing_context", "streaming"), _STREAMED),
    **dict.fromkeys(("data_impl", "data_name", "data_n_workers", "data_skip_warmup"), _STREAMED),
    "ignore_data_skip": _RESUMES,
    **dict.fromkeys(("restore_callback_states_from_checkpoint", "enable_jit_checkpoint"), _RESUMES),
    **dict.fromkeys(("ddp_backend", "ddp_broadcast_buffers", "ddp_bucket_cap_mb", "ddp_timeout"), _SHARDED),
    **dict.fromkeys(("ddp_find_unused_parameters", "ddp_static_graph", "fp16_allreduce", "fp32"), _SHARDED),
    **dict.fromkeys(("local_rank", "_n_gpu", "n_gpu", "no_cuda", "use_cpu", "use_mps_device", "use_ipex"), _DEVICES),
    **dict.fromkeys(("tpu_num_cores", "num_tpu_cores", "tpu_metrics_debug", "mp_parameters", "xpu_backend"), _DEVICES),
    **dict.fromkeys(("torch_compile", "torch_compile_backend", "torch_compile_mode", "torchdynamo"), _COMPILED),
    **dict.fromkeys(("jit_mode_eval", "tf32", "use_liger_kernel", "liger_kernel_config", "use_cache"), _COMPILED),
    **dict.fromkeys(("torch_empty_cache_steps", "attn_implementation", "low_cpu_mem_usage"), _COMPILED),
    **dict.fromkeys(("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"), _COMPILED),
    **dict.fromkeys(("log_level", "log_level_replica", "log_on_each_node", "disable_tqdm", "debug"), _LOGS),
    **dict.fromkeys(("logging_first_step", "include_tokens_per_second"), _LOGS),
    **dict.fromkeys(("include_num_input_tokens_seen", "skip_memory_metrics"), _LOGS),
    "logging_nan_inf_filter": "a loss that is not finite ends the run",
    "logging_dir": "TensorBoard's events are in output_dir/run",
    **dict.fromkeys(("project", "trackio_space_id", "trackio_static_space_id", "trackio_bucket_id"), _TRACKIO),
    **dict.fromkeys(("train_ref_file", "validation_ref_file"), "only whole-word masking of Chinese reads them"),
    **dict.fromkeys(("save_safetensors", "save_on_each_node", "save_only_model"), _CHECKPOINTS),
    **dict.fromkeys(("fp16_full_eval", "bf16_full_eval"), _SAME_PRECISION),
    **dict.fromkeys(("fp16_opt_level", "fp16_backend", "half_precision_backend"), _ONLY_HALF),
    **dict.fromkeys(("min_loss_scale", "max_loss_scale"), "bf16 needs no scaled loss"),
    **dict.fromkeys(("predict_with_generate", "use_generate_on_valid"), _ANSWERS),
    **dict.fromkeys(("pad_to_max_length", "short_seq_prob", "group_by_length"), _LENGTHS),
    **dict.fromkeys(("lang", "forced_bos_token"), _LANGUAGES),
    **dict.fromkeys(("length_column_name", "sortish_sampler", "train_sampling_strategy"), _LENGTHS),
    **dict.fromkeys(("eval_accumulation_steps", "eval_do_concat_batches", "eval_use_gather_object"), _SUMS),
    **dict.fromkeys(("batch_eval_metrics", "prediction_loss_only", "use_legacy_prediction_loop"), _SUMS),
    **dict.fromkeys(("include_for_metrics", "include_inputs_for_metrics"), "metric_names says what is measured"),
    "doc_stride": "a longer context is cut at max_seq_length, as run_seq2seq_qa.py cuts those that it trains on",
    "eval_on_start": "step 0 is evaluated in any case, unless there is an eval_delay",
    "dataloader_pin_memory": "JAX moves the batches",
    "average_tokens_across_devices": "the loss is the mean over all target tokens of the batch, on all devices",
    "cache_dir": "HF_HOME is the folder of the hub's files",
    "model_cls": "the network is Limba's; docs/networks.md shows how to change a layer",
    "base_model": "the network is that of config_name or model_name_or_path",
    "use_fast_tokenizer": "there is one tokenizer",
    "trust_remote_code": "no code of a repository is run",
    "resize_position_embeddings": "a T5 has no table of positions",
    "ignore_mismatched_sizes": "a tensor of another size is an error",
    "remove_unused_columns": "columns that nothing uses are not read",
    "remove_columns": "columns that nothing uses are not read",
    "label_names": "the loss is that of the targets",
    "ignore_pad_token_for_loss": "padding never counts",
    "shuffle_train_dataset": "rows of training are always shuffled",
    "full_determinism": "a run repeats its numbers on the same machine in any case",
    "hub_strategy": "the final model is uploaded",
    "hub_always_push": "the final model is uploaded",
    **dict.fromkeys(("reset_optimizer", "reset_lr", "reset_iteration"), "training starts at step 0 of init_checkpoint"),
    **dict.fromkeys(("lr_drop_eps", "lr_drop_cooldown"), "a drop of the rate has no other conditions"),
    **dict.fromkeys(
        ("n_best_size", "null_score_diff_threshold"),
        "they choose among spans, and a T5 writes its answer: run_seq2seq_qa.py reads neither",
    ),
    "with_tracking": "report_to names the trackers",
    "working_dir": "paths begin where the command runs",
    "show_valid_examples": "`limba preview` shows examples",
}

# Keys of `WITHOUT_EFFECT` that ask for what happens: nothing needs to be said of them.
IN_ANY_CASE = ("predict_with_generate", "use_generate_on_valid")

# Keys of `WITHOUT_EFFECT` that are on in the scripts: false asks for something.
ON = ("ignore_pad_token_for_loss", "use_fast_tokenizer")

_FSDP = (
    "on one device leave it out; on several Limba shards parameters by rules of gin: add "
    "--gin.partitioning.PjitPartitioner.logical_axis_rules='@partitioning.fsdp_logical_axis_rules()' "
    "(docs/partitioning.md)"
)
_BATCH = "`limba plan` says which batch fits; write per_device_train_batch_size and gradient_accumulation_steps"
_LAYERWISE = "it belongs to optimizers of single layers; AdamW and adafactor are here"
_DECODING = "here is no such rule; docs/decoding.md has what there is"
_LORA = "LoRA is trained by `limba train` with gin/runs/lora.gin, of which docs/lora.md has the commands; leave it out"
# The values that ask for nothing, beside null, false and an empty value, and what to do in place of others.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "apex_opt_lvl": (("O0",), "APEX computes in float16, which overflows; write bf16"),
    "skip_used_data": ((), "a new run begins at the start of its corpus, and the same run resumes at its exact place"),
    "data_n_samples": ((), "text is not sampled before; write max_train_samples or max_steps"),
    "validate_only": ((), "write do_eval alone"),
    **dict.fromkeys(("deepspeed", "deepspeed_config", "fsdp"), ((), _FSDP)),
    **dict.fromkeys(("fsdp_transformer_layer_cls_to_wrap", "parallelism_config"), ((), _FSDP)),
    "fsdp_config": (
        ({"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False},),
        _FSDP,
    ),
    "fsdp_min_num_params": ((0,), _FSDP),
    "accelerator_config": (
        (
            {
                "split_batches": False,
                "dispatch_batches": None,
                "even_batches": True,
                "use_seedable_sampler": True,
                "non_blocking": False,
                "gradient_accumulation_kwargs": None,
            },
        ),
        "Accelerate does not run here; gradient_accumulation_steps and data_seed say what it would",
    ),
    "auto_find_batch_size": ((), _BATCH),
    "past_index": ((-1,), "no T5 or BERT has it"),
    "neftune_noise_alpha": ((0,), "noise on embeddings is not here; DROPOUT_RATE of OUTPUT_DIR/run.gin is"),
    "optim_args": ((), "write adam_beta1, adam_beta2, adam_epsilon, scale_parameter … as keys"),
    "optim_target_modules": ((), _LAYERWISE),
    "generation_config": ((), "write generation_max_length and generation_num_beams"),
    "length_penalty": (
        (1,),
        "beam search has one of its own, --gin.decoding.beam_search.alpha=0.6 (docs/decoding.md)",
    ),
    "repetition_penalty": ((1,), _DECODING),
    "no_repeat_ngram_size": ((0,), _DECODING),
    "use_peft": ((), _LORA),
    "lora_r": ((16,), _LORA),
    "lora_alpha": ((32,), _LORA),
    "lora_dropout": ((0.05,), _LORA),
    "lora_target_modules": ((), _LORA),
    "push_to_hub_organization": ((), "write hub_model_id as ORG/NAME"),
    "hub_revision": (("main",), "uploads go to the branch main"),
    "model_revision": (
        ("main",),
        "name a folder: hf download NAME --revision REVISION --local-dir FOLDER",
    ),
    "ray_scope": (("last",), "`limba sweep` searches (docs/sweeps.md)"),
    **{
        f"{split}_split_name": ((split,), "splits have this name: write train_file, validation_file and test_file")
        for split in ("train", "validation", "test")
    },
    "remove_splits": ((), "splits that no key names are not read"),
    "shuffle_seed": ((42,), "data_seed is the seed of the order"),
    "pre_training_dataset_paths": ((), "one corpus a run: write dataset_name, or a mixture of tasks (docs/data.md)"),
    "pre_training_dataset_names": ((), "write dataset_config_name"),
}
