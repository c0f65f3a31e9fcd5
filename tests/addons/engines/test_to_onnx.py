"""`limba convert to-onnx`: what ONNX Runtime computes with the files is what the model computes."""

import contextlib
import importlib.metadata
import io
import json
import re
import shutil
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from convert.__main__ import main
from convert.families import heads
from convert.model_files import any_format
from limba.addons.engines import encoder_check
from limba.addons.engines import to_onnx as command
from limba.addons.engines.onnx import onnx_export, onnx_graphs, onnx_library, onnx_t5_check
from limba.addons.engines.to_onnx import to_onnx
from limba.files import disk
from tests.convert.encoders.conftest import CLASSIFIERS, OF_5_ALONE, PAIRS, VARIANTS, new_encoder, tokenizer_file

onnx = pytest.importorskip("onnx", reason="pip install 'limba[onnx]'")
pytest.importorskip("torch")

__all__ = ["new_encoder", "tokenizer_file"]  # fixtures

ROOT = Path(__file__).parents[3]
SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1}
TWO = {"num_encoder_layers": 2, "num_decoder_layers": 2}
# Writing takes most of the time: the others are written where time does not matter. In int8 all files in float32 are
# written and compared first.
rarely = pytest.mark.exhaustive
T5S = {"t5": ("int8", SMALL)}
RARE_T5S = {"umt5": ("float32", SMALL), "t5_1_1": ("int8", TWO), "mt5": ("float32", TWO), "byt5": ("float32", SMALL)}
ENCODERS = {name: (variant, heads.OF_MASKED_LM) for name, variant in zip(VARIANTS, VARIANTS, strict=True)}
ENCODERS |= CLASSIFIERS | PAIRS
ENCODERS = {name: found for name, found in ENCODERS.items() if found[0] not in OF_5_ALONE}


def fields_of(family):
    return (T5S | RARE_T5S)[family][1]


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    """The folder and the report of a family; beside one in int8 the files in float32, in `FAMILY_float32`."""
    folder, found = tmp_path_factory.mktemp("written"), {}
    remove = onnx_export.OnnxExport.remove_unneeded

    def of(family):
        def copy_and_remove(export, made):
            if export.quantization == "int8":
                shutil.copytree(made / onnx_export._FLOAT32, folder / f"{family}_float32")
            remove(export, made)

        if family not in found:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(onnx_export.OnnxExport, "remove_unneeded", copy_and_remove)
                report = to_onnx(runs(family), folder / family, quantization=(T5S | RARE_T5S)[family][0])
            found[family] = folder / family, report
        return found[family]

    return of


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", [*T5S, *(pytest.param(family, marks=rarely) for family in RARE_T5S)])
def test_the_engine_computes_what_the_model_does(family, written):
    folder, report = written(family)
    rows = {row["what"]: row for row in report["comparison"]}
    assert report["family"] in (family, "t5_1_1") and all(row["holds"] for row in rows.values())
    for what in ("hidden states", "logits", "logits with past", "log-probabilities"):
        row = rows[f"{what}, ONNX Runtime"]
        assert row["value"] < 5e-5 and row["allowed"] < 1e-3
    assert rows["other greedy tokens, ONNX Runtime"]["value"] == 0
    assert family == "byt5" or rows["texts with other ids"]["value"] == 0
    assert ("loss, int8" in rows) == (report["quantization"] == "int8")
    assert report["files"] == sorted(file.name for file in folder.iterdir())
    assert {"config.json", "generation_config.json", *onnx_graphs.OF_T5} <= {*report["files"]}


def test_names_are_those_of_optimum(written):
    folder, _ = written("t5")
    own = [f"0.decoder.{kind}" for kind in ("key", "value")]
    cross = [f"0.encoder.{kind}" for kind in ("key", "value")]
    expected = {
        "encoder_model.onnx": (["input_ids", "attention_mask"], ["last_hidden_state"]),
        "decoder_model.onnx": (
            ["encoder_attention_mask", "input_ids", "encoder_hidden_states"],
            ["logits", *(f"present.{name}" for name in own + cross)],
        ),
        "decoder_with_past_model.onnx": (
            ["encoder_attention_mask", "input_ids", *(f"past_key_values.{name}" for name in own + cross)],
            ["logits", *(f"present.{name}" for name in own)],
        ),
    }
    for name, (inputs, outputs) in expected.items():
        session = onnx_library.session(folder / name)
        assert [x.name for x in session.get_inputs()] == inputs
        assert [x.name for x in session.get_outputs()] == outputs


def test_int8_says_what_it_changes(written):
    folder, report = written("t5")
    notes = {row["what"]: row["note"] for row in report["comparison"]}
    change, after, before = map(float, re.findall(r"[-+]?\d+\.\d+", notes["loss, int8"])[:3])
    assert 0 < abs(change) < 0.2 and change == pytest.approx(after - before, abs=2e-6)
    same, count = map(int, re.match(r"(\d+) of (\d+) are", notes["greedy tokens, int8"]).groups())
    assert count / 2 < same <= count
    for name in onnx_graphs.OF_T5:
        weights = [x for x in onnx.load(folder / name).graph.initializer if len(x.dims) == 2 and np.prod(x.dims) > 700]
        assert weights and {x.data_type for x in weights} == {onnx.TensorProto.UINT8}


# ------------------------------------------------------- faults ------------------------------------------------------


def _without_scale(graphs):
    """A tied model whose logits are not divided by sqrt(d_model)."""
    for name in onnx_graphs.OF_T5[1:]:
        found = [x for x in graphs[name].initializer if onnx.numpy_helper.to_array(x).size == 1]
        (scale,) = [x for x in found if np.allclose(onnx.numpy_helper.to_array(x), 32**-0.5, rtol=1e-6)]
        array = np.ones_like(onnx.numpy_helper.to_array(scale))
        scale.CopyFrom(onnx.numpy_helper.from_array(array, scale.name))


def _cache_as_before(graphs):
    """The step after the first gives back the past as it was."""
    graph = graphs["decoder_with_past_model.onnx"]
    for output in [x.name for x in graph.output if x.name != "logits"]:
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [f"new {name}" if name == output else name for name in names]
        graph.node.append(onnx.helper.make_node("Identity", [output.replace("present", "past_key_values")], [output]))


def _mask_of_ones(graphs):
    """The encoder sees padding."""
    graph = graphs["encoder_model.onnx"]
    for node in graph.node:
        node.input[:] = ["ones" if name == "attention_mask" else name for name in node.input]
    one = onnx.numpy_helper.from_array(np.ones(1, np.int64))
    graph.node.insert(0, onnx.helper.make_node("ConstantOfShape", ["shape of ones"], ["ones"], value=one))
    graph.node.insert(0, onnx.helper.make_node("Shape", ["attention_mask"], ["shape of ones"]))


def _kernels_exchanged(graphs):
    """Two kernels of the encoder stand in each other's place."""
    first, second, *_ = [x for x in graphs["encoder_model.onnx"].initializer if [*x.dims] == [32, 24]]
    a, b = map(onnx.numpy_helper.to_array, (first, second))
    first.CopyFrom(onnx.numpy_helper.from_array(b.copy(), first.name))
    second.CopyFrom(onnx.numpy_helper.from_array(a.copy(), second.name))


@pytest.mark.parametrize(
    "fault, wrong, right",
    [
        (_without_scale, ["logits,", "logits with past", "log-prob"], ["hidden states", "other greedy"]),
        (_cache_as_before, ["logits with past", "log-prob"], ["hidden states", "logits,"]),
        (_mask_of_ones, ["hidden states", "logits,", "logits with past", "log-prob"], []),
        (_kernels_exchanged, ["hidden states", "logits,", "logits with past", "log-prob"], []),
    ],
)
def test_wrong_files_are_found(fault, wrong, right, runs, written, tmp_path, monkeypatch):
    source = written("t5")[0].with_name("t5_float32")
    models = {name: onnx.load(source / name) for name in onnx_graphs.OF_T5}
    fault({name: model.graph for name, model in models.items()})

    def write(folder, tensors, is_tied, target):
        for name, model in models.items():
            onnx.save(model, target / name)

    monkeypatch.setattr(onnx_graphs, "write_t5", write)
    with pytest.raises(ValueError, match="What is written for ONNX Runtime is not the model") as error:
        to_onnx(runs("t5"), tmp_path / "out")
    assert all(what in str(error.value) for what in wrong) and not any(what in str(error.value) for what in right)
    assert not [*tmp_path.iterdir()]


# ------------------------------------------------------- programs ----------------------------------------------------


def _printed(code, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "README.md", "exec"), {})
    return out.getvalue().rstrip("\n")


@pytest.mark.parametrize("family", ["t5", pytest.param("byt5", marks=rarely)])
def test_the_program_of_the_readme_runs(family, written, monkeypatch):
    from tokenizers import Tokenizer

    folder, _ = written(family)
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.S)
    text = re.search(r'^text = "(.*?)"', code, re.M)[1]
    printed = _printed(code.replace("< 64", "< 17"), folder, monkeypatch)
    engine = onnx_t5_check.Engine(folder, 0)
    if family == "byt5":
        (tokens,) = engine.greedy(np.array([[*(byte + 3 for byte in text.encode()), 1]]))
        assert printed == bytes(i - 3 for i in tokens if 3 <= i < 259).decode(errors="ignore")
    else:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        (tokens,) = engine.greedy(np.array([tokenizer.encode(text).ids]))
        tokens = tokens[: [*tokens, 1].index(1) + 1]
        assert printed == tokenizer.decode(tokens, skip_special_tokens=False) != ""


@pytest.mark.parametrize("name", ["bert", *(pytest.param(name, marks=rarely) for name in ENCODERS if name != "bert")])
def test_encoders_and_their_heads(name, new_encoder, tmp_path, monkeypatch):
    variant, head = ENCODERS[name]
    run, folder = new_encoder(tmp_path / "run", head, **VARIANTS[variant]), tmp_path / "out"
    report = to_onnx(run, folder, quantization="int8" if name == "bert rows" else "float32")
    rows = {row["what"]: row for row in report["comparison"]}
    assert all(row["holds"] for row in rows.values()) and rows["texts with other ids"]["value"] == 0
    for what in ("hidden states", "logits", *(["pair logits"] if name in PAIRS else [])):
        assert rows[f"{what}, ONNX Runtime"]["value"] < 5e-5 and rows[f"{what}, ONNX Runtime"]["allowed"] < 1e-3
    if head.labels:
        return
    # The program of the README: means of the hidden states of the two texts.
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.S)
    code = code.replace("The first text.", "w7 w9").replace("The second one.", "w8")
    printed = np.array(re.sub(r"[\[\]]", "", _printed(code, folder, monkeypatch)).split(), float).reshape(2, -1)
    model = any_format.open_model(run)
    ids = np.array([[2, 7, 9, 3], [2, 8, 3, model.config.pad_id]], np.int32)
    states = encoder_check.limba_states(model, ids, np.zeros_like(ids))
    np.testing.assert_allclose(printed, [states[0].mean(0), states[1, :3].mean(0)], atol=1e-4)


def test_the_example_of_the_page_runs(written, tmp_path, monkeypatch):
    page = (ROOT / "docs/serving.md").read_text("utf-8")
    assert "limba convert to-onnx runs/mine exports/mine_onnx" in page
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "onnxruntime" in block]
    (tmp_path / "exports").mkdir()
    shutil.copytree(written("t5")[0], tmp_path / "exports/mine_onnx")
    assert _printed(code, tmp_path, monkeypatch)


@rarely
@pytest.mark.parametrize("family", ["t5", "t5_1_1"])
def test_transformers_5_writes_them_too(family, runs, forks5, tmp_path):
    """It says of every T5 that it is tied."""
    script = Path(__file__).with_name("to_onnx_in_transformers5.py")
    done = forks5.run(script, ROOT, sysconfig.get_path("purelib"), runs(family), tmp_path / "out")
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "out/conversion_report.json").read_text("utf-8"))
    assert len(report["comparison"]) >= 8 and all(row["holds"] for row in report["comparison"])


@rarely
@pytest.mark.parametrize("family", OF_5_ALONE)
def test_transformers_5_writes_encoders_that_version_4_does_not_have(family, new_encoder, forks5, tmp_path):
    script, run = Path(__file__).with_name("to_onnx_in_transformers5.py"), tmp_path / "run"
    new_encoder(run, **VARIANTS[family])
    done = forks5.run(script, ROOT, sysconfig.get_path("purelib"), run, tmp_path / "out")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {row["what"]: row for row in json.loads((tmp_path / "out/conversion_report.json").read_text())["comparison"]}
    assert all(row["holds"] for row in rows.values()) and rows["logits, ONNX Runtime"]["value"] < 5e-5


# ------------------------------------------------------ bad input ----------------------------------------------------


def _error(arguments, capsys):
    assert main(["to-onnx", *map(str, arguments)]) == 1
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_what_cannot_be_written_leaves_nothing(runs, written, tmp_path, capsys, monkeypatch):
    run, out = runs("t5"), tmp_path / "out"
    folder, _ = written("t5")
    assert "a model of ONNX" in _error([folder, out], capsys)
    assert "does not exist, and" in _error([tmp_path / "nowhere", out], capsys)
    assert "other quantization, checked" in _error([run, folder, "--no-check"], capsys)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10**6)
    assert "needs 0.02 GB, and 0.00 GB are free" in _error([run, out], capsys)
    assert main(["push", str(folder), "org/name"]) == 1
    assert f"{folder} is for ONNX Runtime" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "package, remedy", [("onnxscript", "pip install 'limba[onnx]'"), ("torch", "pip install torch transformers")]
)
def test_a_missing_package_has_one_message(package, remedy, runs, tmp_path, capsys, monkeypatch):
    version = importlib.metadata.version

    def without(name):
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without)
    error = _error([runs("t5"), tmp_path / "o"], capsys)
    assert error.startswith(f"error: {package} is not installed.") and remedy in error
    assert not [*tmp_path.iterdir()]


def test_relative_keys_with_transformers_5_are_refused(new_encoder, tmp_path, monkeypatch):
    run = new_encoder(tmp_path / "run", **VARIANTS["relative_key_query"])
    monkeypatch.setattr("convert.compare.transformers_library.version", lambda: "5.23.0")
    with pytest.raises(ValueError, match=r"transformers 5\.23\.0 has no relative_key_query"):
        command._export(any_format.open_model(run), "float32")


def test_an_encoder_that_transformers_has_no_class_of_is_refused(new_encoder, tmp_path):
    model = any_format.open_model(new_encoder(tmp_path / "run", **VARIANTS["eurobert"]))
    with pytest.raises(ValueError, match=r"is a EuroBERT, of which transformers 4\.57\.\d has no class"):
        command._export(model, "float32")
