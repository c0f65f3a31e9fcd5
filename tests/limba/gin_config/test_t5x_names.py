import logging
import subprocess
import sys
import types
from pathlib import Path

import pytest

from limba.gin_config import t5x_names

ROOT = Path(t5x_names.__file__).parents[2]

# What T5X's own gin files, and task modules and networks written for it, name: each must be here.
NAMES = {
    "t5x.adafactor": "Adafactor standard_logical_factor_rules HParamMap FactorDim",
    "t5x.checkpoints": "Checkpointer SaveBestCheckpointer find_checkpoint",
    "t5x.decoding": "temperature_sample beam_search DecodingState brevity_penalty",
    "t5x.gin_utils": "summarize_gin_config get_gin_config_str rewrite_gin_args sum_fn bool_fn string_split_fn",
    "t5x.losses": (
        "cross_entropy_with_logits compute_weighted_cross_entropy SpecialLossNormalizingFactor "
        "get_loss_normalizing_factor_and_weights convert_special_loss_normalizing_factor_to_enum"
    ),
    "t5x.metrics": "Sum AveragePerStep",
    "t5x.models": (
        "EncoderDecoderModel DecoderOnlyModel BaseModel BaseTransformerModel DecoderParams get_input_vocabulary "
        "get_output_vocabulary"
    ),
    "t5x.optimizers": "OptimizerDef OptaxWrapper wrap_optax_optimizer chain MultiOptimizer",
    "t5x.partitioning": (
        "PjitPartitioner BasePartitioner standard_logical_axis_rules LogicalAxisRules with_sharding_constraint"
    ),
    "t5x.precompile": "precompile",
    "t5x.state_utils": "apply_assignment_map merge_state intersect_state flatten_state_dict",
    "t5x.train": "train",
    "t5x.train_state": "TrainState",
    "t5x.trainer": (
        "Trainer BaseTrainer WeightMetricsComputer TerminateOnNanAction EarlyStoppingAction BaseAction ActionMode"
    ),
    "t5x.utils": (
        "DatasetConfig SaveCheckpointConfig RestoreCheckpointConfig CheckpointConfig create_learning_rate_scheduler "
        "get_dataset get_training_eval_datasets get_vocabulary verify_matching_vocabs TrainStateInitializer "
        "round_vocab_size_to_multiple"
    ),
    "t5x.eval": "evaluate InferenceEvaluator",
    "t5x.infer": "infer create_task_from_tfexample_file",
    "t5x.examples.t5.network": "T5Config Transformer Encoder Decoder EncoderLayer DecoderLayer",
    "t5x.examples.scalable_t5.network": "T5Config Transformer Encoder Decoder",
    "t5x.examples.decoder_only.network": "TransformerConfig DecoderWrapper Decoder DecoderLayer",
    "t5x.contrib.gpu.t5.network": "T5Config Transformer",
    "t5x.examples.t5.layers": (
        "MultiHeadDotProductAttention dot_product_attention DenseGeneral MlpBlock Embed RelativePositionBiases "
        "LayerNorm make_attention_mask make_causal_mask make_decoder_mask combine_masks combine_biases"
    ),
    "t5.data.glue_utils": (
        "get_glue_text_preprocessor get_glue_postprocess_fn get_glue_metric get_super_glue_metric "
        "get_glue_weight_mapping get_super_glue_weight_mapping"
    ),
    "t5.data": (
        "get_super_glue_weight_mapping rate_num_examples get_default_vocabulary DEFAULT_SPM_PATH ByteVocabulary "
        "SentencePieceVocabulary preprocessors mixtures"
    ),
    "t5.data.utils": "DEFAULT_EXTRA_IDS DEFAULT_SPM_PATH get_default_vocabulary",
    "t5.data.preprocessors": (
        "span_corruption prefix_lm rekey tokenize append_eos parse_tsv summarize select_random_chunk "
        "reduce_concat_tokens split_tokens split_tokens_to_inputs_length translate multi_translate squad glue stsb wsc "
        "record wsc_simple definite_pronoun_resolution_simple"
    ),
    "t5.data.postprocessors": "lower_text string_to_float string_label_to_class_id qa multirc record wsc_simple",
    "t5.evaluation.qa_utils": "qa_metrics normalize_squad normalize_trivia_qa",
    "t5.evaluation.metrics": (
        "bleu rouge squad span_squad trivia_qa accuracy sequence_accuracy all_match f1_score_with_invalid auc "
        "mean_multiclass_f1 pearson_corrcoef spearman_corrcoef sklearn_metrics_wrapper deduplicate_metric "
        "mean_group_metric"
    ),
}


def _run(code, **environment):
    """In a process of its own: what it puts into sys.modules should not reach other tests."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, **environment
    )


def test_every_name_of_the_gin_surface_is_here():
    code = (
        "from limba.gin_config import t5x_names; t5x_names.install()\n"
        "import importlib, types, t5x, t5.data.mixtures\n"
        f"for module, names in {NAMES!r}.items():\n"
        "    for name in names.split():\n"
        "        value = getattr(importlib.import_module(module), name)\n"
        "import t5, t5x.utils, limba.data.contract, limba.network.t5, t5x.examples.t5.network\n"
        "assert t5x.utils.DatasetConfig is limba.data.contract.DatasetConfig\n"
        "assert t5x.examples.t5.network.T5Config is limba.network.t5.T5Config\n"
        "for module, targets in t5x_names.MODULES.items():\n"
        "    for target in targets: importlib.import_module(target)\n"
        "    t5x_names.public_names(module)\n"
        "modules = t5x_names.public_names('t5x')\n"
        "assert {'adafactor', 'examples', 'utils'} <= set(modules) and not any('.' in name for name in modules)\n"
        "assert t5.evaluation.metrics.__name__ == 't5.evaluation.metrics'\n"
    )
    _run(code)


# In a process of its own, as above; the aliases are lazy.
_CHECK = """
from limba.gin_config import t5x_names
t5x_names.install()
t5x_names.install()
import sys
assert "limba.optimizers.adafactor" not in sys.modules, "aliases are lazy"
assert "seqio" not in sys.modules
import t5x.adafactor, limba.optimizers.adafactor
assert t5x.adafactor.Adafactor is limba.optimizers.adafactor.Adafactor
from t5x import utils
for broken in ("t5x.adafactr", "t5x.contrib.calm.models", "t5x.export_lib", "t5.models.mesh_transformer"):
    try:
        __import__(broken)
    except ModuleNotFoundError as error:
        print(error)
import t5.data.mixtures
for module, name in ((utils, "DatasetConfg"), (t5.data.mixtures, "c4_v220")):
    try:
        getattr(module, name)
    except AttributeError as error:
        print(error)
try:
    from t5x.utils import DatasetConfg
except ImportError as error:
    print(type(error).__name__)
"""


def test_what_is_not_provided_says_what_is():
    lines = _run(_CHECK).stdout.splitlines()
    assert lines[0] == "Limba does not provide t5x.adafactr. It provides t5x.adafactor."
    assert lines[1] == "Limba does not provide t5x.contrib.calm. Limba has no early-exit decoding."
    assert lines[2].startswith(
        "Limba does not provide t5x.export_lib. Limba writes no TensorFlow SavedModels; `limba conv"
    )
    assert lines[3].startswith("Limba does not provide t5.models. Mesh TensorFlow")
    assert lines[4].startswith("Limba does not provide t5x.utils.DatasetConfg. Did you mean DatasetConfig")
    assert "t5.data.mixtures.c4_v220" in lines[5]
    assert lines[6] == "ImportError"


@pytest.mark.parametrize(("value", "words"), [("both", "'alias'"), ("installed", "no module t5x")])
def test_the_choice_of_engine_is_explicit(monkeypatch, value, words):
    monkeypatch.setenv("LIMBA_T5X", value)
    with pytest.raises(ValueError, match=words):
        t5x_names.uses_installed_t5x()


@pytest.mark.parametrize("choice", ["alias", "installed"])
def test_an_installed_t5x_is_used_when_it_is_asked_for(tmp_path, choice):
    for package in ("t5x", "t5"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"WHO = 'the real {package}'\n")
    (tmp_path / "t5x" / "gin_utils.py").write_text("")
    code = (
        "import logging, sys; logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
        "from limba.gin_config import t5x_names; t5x_names.install()\n"
        "import t5, t5x; print(t5.WHO, getattr(t5x, 'WHO', 'Limba'))\n"
    )
    out = _run(code, env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "LIMBA_T5X": choice, "PATH": "/usr/bin:/bin"}).stdout
    assert ("the real t5 the real t5x" if choice == "installed" else "the real t5 Limba") in out
    assert ("LIMBA_T5X=installed)" if choice == "installed" else f"{tmp_path}/t5x is not used") in out


def test_a_folder_without_python_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "t5").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert t5x_names.installed("t5") is None
    assert t5x_names.installed("json") is not None


def test_main_has_the_scripts_of_t5x_and_keeps_its_own(monkeypatch):
    from limba import train

    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    t5x_names.install()
    assert main.train is train.train
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = main.tarin

    def own():
        """A user's own."""

    main = types.ModuleType("__main__")
    main.train = own
    monkeypatch.setitem(sys.modules, "__main__", main)
    t5x_names.install()
    assert main.train is own
    assert main.precompile.__module__ == "limba.precompile"


def test_a_second_copy_of_a_script_gives_way_to_the_first(monkeypatch):
    """`python -m limba.train` runs the module as `__main__`; gin must see the functions of limba.train."""
    from limba import train

    copy = types.ModuleType("__main__")
    copy.__file__ = train.__file__
    copy.train = types.FunctionType(train.train.__code__, {}, closure=train.train.__closure__)
    monkeypatch.setitem(sys.modules, "__main__", copy)
    t5x_names.install()
    assert copy.train is train.train


def test_the_log_says_whose_t5x_it_is(caplog, monkeypatch):
    monkeypatch.delitem(sys.modules, "t5x", raising=False)
    t5x_names.install()
    with caplog.at_level(logging.INFO, "limba"):
        __import__("t5x")
    assert "t5x is Limba." in caplog.messages


def test_a_process_of_t5x_keeps_its_modules(tmp_path):
    """T5X reads a cache of Limba's tasks, which loads an objective: what T5X imports later is T5X's."""
    (tmp_path / "t5x").mkdir()
    for name in ("__init__", "decoding"):
        (tmp_path / "t5x" / f"{name}.py").write_text("WHO = 'the real one'\n")
    code = (
        "import t5x; from limba.gin_config import importing; importing.load('numpy')\n"
        "import t5x.decoding, t5.data; print(t5x.WHO, t5x.decoding.WHO, t5.data.__name__)\n"
    )
    out = _run(code, env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}).stdout
    assert "the real one the real one t5.data" in out
