import gin

from limba import precompile
from limba.data import contract
from limba.gin_config import gin_files
from limba.partitioning import meshes
from tests.limba import small

LENGTHS = {"inputs": 16, "targets": 8}


def _config(**fields):
    defaults = {"mixture_or_task_name": "nobody", "task_feature_lengths": LENGTHS, "split": "train", "batch_size": 8}
    return contract.DatasetConfig(**(defaults | fields))


def test_the_step_is_compiled_without_data(capsys, tmp_path):
    model = small.model(emb_dim=32, num_encoder_layers=1, num_decoder_layers=1)
    report = precompile.precompile(
        model=model,
        train_dataset_cfg=_config(pack=True),
        partitioner=meshes.PjitPartitioner(num_partitions=2),
        model_dir=str(tmp_path),
    )
    assert report["mesh"] == {"data": 4, "model": 2}
    assert report["compile_seconds"] > 0
    # Parameters alone are more than this; the optimizer's state is factored.
    assert report["state_and_batch_bytes_per_device"] > 4 * 2 * 32 * 128
    assert str(report["flops_per_device"]) in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_t5x_run_file_binds_it():
    gin.clear_config()
    files = ["t5x/examples/t5/t5_1_1/tiny.gin", "t5x/configs/runs/precompile.gin"]
    given = [
        "MIXTURE_OR_TASK_NAME = 'x'",
        f"TASK_FEATURE_LENGTHS = {LENGTHS}",
        "MODEL_DIR = 'runs/x'",
        "DROPOUT_RATE = 0.0",
    ]
    try:
        gin_files.parse_gin_flags(files, [*given, "BATCH_SIZE = 4"])
        assert str(gin.query_parameter("precompile.model_dir")) == "%MODEL_DIR"
        assert gin.query_parameter("%MODEL_DIR") == "runs/x"
        rows = gin.get_bindings("train/DatasetConfig")
        assert (rows["batch_size"], rows["pack"], rows["task_feature_lengths"]) == (4, True, LENGTHS)
    finally:
        gin.clear_config()
