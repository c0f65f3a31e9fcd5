"""The add-ons: a row for each folder beside this file. Whoever deletes a folder and its row has a Limba without it.

The core knows add-ons by this table alone and imports none of them: `limba/cli.py` and `convert/__main__.py` list their
commands, `parts` gives what a command of the core asks them for, and gin files may name what their rows say.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Addon(NamedTuple):
    """What an add-on adds to the core.

    Attributes:
      commands: `limba COMMAND`, of one word or two: the module with `main(argv)`, and what it does.
      conversions: `limba convert COMMAND`: the module with `add_arguments(parser)` and `run(args)`, and what it does.
      parts: modules by what they are for: `PARTS`.
      families: modules whose FAMILY converters know, a `convert.families.family.Family`.
      gin_modules: modules whose public names gin files may use (`limba/gin_config/closed_list.py`), folders with all in
        them.
      gin_hidden: modules in these that they may not use: what writes files, or is a command.
      gin_names: of other modules, the names that they may use.
      gin_programs: of these, what acts: a file binds its arguments and has it as no value.
      other_names: of its package and modules, in files of users and in programs that start its server; the real ones.
      names: of packages of the core, further names that their users write; the modules that have them.
      former_fields: of its configuration, which all T5s had before, the values without effect: runs record them.
      t5x_names: a module whose MODULES says which of its modules have the names of T5X's (`gin_config/t5x_names.py`).
    """

    commands: Mapping[str, tuple[str, str]] = {}
    conversions: Mapping[str, tuple[str, str]] = {}
    parts: Mapping[str, str] = {}
    families: tuple[str, ...] = ()
    gin_modules: tuple[str, ...] = ()
    gin_hidden: tuple[str, ...] = ()
    gin_names: Mapping[str, tuple[str, ...]] = {}
    gin_programs: tuple[str, ...] = ()
    other_names: Mapping[str, str] = {}
    names: Mapping[str, str] = {}
    former_fields: Mapping[str, object] = {}
    t5x_names: str = ""


# What a part is for, and the functions that its module has.
PARTS: Mapping[str, str] = {
    "eval": "another evaluation of `limba eval`: add_flags(parser), check_flags(flags, parser), is_asked(flags), "
    "run(flags, bindings)",
    "scoreboard": "measurements of `limba scoreboard`: add_flags(parser), check_flags(flags, parser), is_asked(flags), "
    "run(flags, models, checkpoints)",
    "check": "a kind of folder of `limba convert check`: kind(report), compare(model, folder, report)",
    "check_alone": "a check of a model alone by `limba convert check A`: add_flags(parser), check_flags(args), "
    "is_asked(args), run(model, args)",
    "folder": "`limba convert check` of a folder alone: check(model, hints); and of an export's files beside the other "
    "model: compare_written(label, model, other)",
    "serve": "a run for a faster engine of `limba serve`: kept_folder(checkpoint, average, part, say)",
    "sparse_attention": "`EncoderConfig.sparse_attention`: of_json(fields), of_deepspeed(name, fields), "
    "check(sparse, num_heads, longest_row), visible(config, segments), seen_keys(config, length), "
    "attend(config, query, key, value, visible, bias, relative_keys)",
    "launch": "`limba launch --to KIND`: main(argv)",
    "seqio": "tasks, sources and feature converters of SeqIO's: kind_of(config, provider, converter), "
    "open_readers(stream, layout, seed), may_be_endless(task, config), reads_documents(task, config), chunks(…), "
    "DatasetBatches, make_evaluator(…), set_folders(…), check(task, config, role, steps); and for SeqIO, "
    "apply(step, dataset), documents(chunks, num_epochs)",
    "seqio_registry": "a module whose import registers our tasks with SeqIO",
    "torch_files": "weights in PyTorch's files: open_tensors(files, buffers), training_step(file)",
    "in_transformers": "what transformers' classes compute, for checks: possible(family), run_t5(path, config, dtype, "
    "batch, request), run_encoder(path, dtype, batch, request)",
    "baselines": "n-grams beside a run's evaluations: RunBaselines(settings, model=…, model_dir=…, …), with of_task(…)",
    "spikes": "`train.spikes`: check(checkpoint), begin(guard, directory=…, checkpointer=…, …), which gives a `Spikes`",
    "reader_processes": "`DatasetConfig.num_workers`: ReaderProcesses(stream, num_rows, num_workers)",
    "attention": "kernels for `limba.network.kernels.attention`: choose(config, lengths, …), attend(query, key, …), "
    "comparisons()",
    "layer_norm_gpu": "`limba.network.layers` on GPUs: is_right(x, has_update, epsilon), add_and_norm(x, update, …)",
    "upload": "the upload of an export by another command: push(folder, repo, public=…)",
    "card": "the model card of `limba convert to-hf`: add_arguments(parser), given(args), check(export, card), "
    "write(folder, name, export, report, card); and for other cards and pages results_of(metrics, accuracy), "
    "losses_in(text)",
    "task_functions": "functions that register a task, for a model card's example: FUNCTIONS, by `module.function`",
    "script_keys": "keys of Hugging Face's scripts: check_key(key), is_known_script(name)",
}

ADDONS: Mapping[str, Addon] = {
    "run": Addon(
        {"run": ("limba.addons.run.command", "train with the keys of a Hugging Face script, and export")},
        parts={
            "script_keys": "limba.addons.run.keys.script_keys",
            "task_functions": "limba.addons.run.script_task",
        },
        gin_names={"limba.addons.run.script_task": ("task", "word_task")},
        other_names={"tasks.supervised.script_task": "limba.addons.run.script_task"},
    ),
    "corpus": Addon({"corpus": ("limba.addons.corpus.command", "from a crawl to a corpus, by datatrove's blocks")}),
    "sweep": Addon({"sweep": ("limba.addons.sweep.command", "try many values of gin bindings, and keep the best")}),
    "pairs": Addon(
        {
            "pairs": ("limba.addons.pairs.pairs_command", "make minimal pairs about agreement of a treebank, for eval"),
            "words": ("limba.addons.pairs.words_command", "words with labels of a treebank or a file of entities"),
            "score": ("limba.addons.pairs.score_command", "how likely texts are to a model, to rank or filter them"),
            "lm-eval": ("limba.addons.pairs.lm_eval_command", "tasks of lm-eval, T5s by their blanks"),
        },
        parts={
            "eval": "limba.addons.pairs.eval_pairs",
            "scoreboard": "limba.addons.pairs.scoreboard.board_command",
        },
        gin_modules=("limba.addons.pairs",),
        gin_hidden=(
            "limba.addons.pairs.conllu_files",
            "limba.addons.pairs.pairs_command",
            "limba.addons.pairs.scoreboard",
            "limba.addons.pairs.word_files",
            "limba.addons.pairs.words_command",
        ),
        gin_names={
            "limba.addons.pairs.eval_pairs": ("evaluate_pairs", "PairsLogger"),
            "limba.addons.pairs.score_command": ("score_texts",),
            "limba.addons.pairs.lm_eval_command": ("open_requests",),
            "limba.addons.pairs.scoreboard.board_rows": ("open_checkpoint",),
        },
        gin_programs=(
            "limba.addons.pairs.eval_pairs.evaluate_pairs",
            "limba.addons.pairs.score_command.score_texts",
            "limba.addons.pairs.lm_eval_command.open_requests",
            "limba.addons.pairs.scoreboard.board_rows.open_checkpoint",
        ),
        other_names={"tasks.minimal_pairs": "limba.addons.pairs"},
    ),
    "pages": Addon(
        {
            "runs": (
                "limba.addons.pages.runs_command",
                "runs under folders: step, losses, speed, and whether they run or failed",
            ),
            "report": ("limba.addons.pages.report_command", "a page about one or several runs, in one file"),
            "scoreboard": (
                "limba.addons.pages.scoreboard",
                "runs, exports and folders of transformers side by side: their evaluations, or measured on files",
            ),
        }
    ),
    "baselines": Addon(parts={"baselines": "limba.addons.baselines.run_baselines"}),
    "cache": Addon(
        {"cache": ("limba.addons.cache.write_cache", "tokenize a task once, into files that are read by index")},
        gin_names={"limba.addons.cache.cached_data": ("get_dataset", "get_eval_datasets")},
        other_names={"tasks.pipeline.cached": "limba.addons.cache"},
    ),
    "cards": Addon(parts={"card": "limba.addons.cards.export_card"}),
    "seqio": Addon(
        parts={"seqio": "limba.addons.seqio.foreign_tasks", "seqio_registry": "limba.addons.seqio.registry_copies"},
        other_names={"tasks.pipeline.seqio": "limba.addons.seqio"},
    ),
    "reader_processes": Addon(parts={"reader_processes": "limba.addons.reader_processes.reader_processes"}),
    "torch_files": Addon(parts={"torch_files": "limba.addons.torch_files.torch_files"}),
    "transformers_check": Addon(parts={"in_transformers": "limba.addons.transformers_check.transformers_process"}),
    "publish": Addon(
        conversions={
            "all": ("limba.addons.publish.all_checkpoints", "write a Hugging Face folder of every checkpoint of a run"),
            "push": ("limba.addons.publish.push", "upload a converted folder to the Hugging Face hub"),
        },
        parts={"upload": "limba.addons.publish.push"},
        other_names={
            "convert.all_checkpoints": "limba.addons.publish.all_checkpoints",
            "convert.push": "limba.addons.publish.push",
        },
    ),
    "derived_runs": Addon(
        {
            "branch": (
                "limba.addons.derived_runs.branch_command",
                "the decay of a run at a constant rate, as a run of its own",
            ),
            "average": (
                "limba.addons.derived_runs.average_command",
                "the mean of the last checkpoints of a run, as a run of its own",
            ),
        },
        gin_names={"limba.addons.derived_runs.configured_network": ("check",)},
        gin_programs=("limba.addons.derived_runs.configured_network.check",),
    ),
    "distill": Addon(gin_modules=("limba.addons.distill",)),
    "serve": Addon(
        {
            "try": (
                "limba.addons.serve.try_model",
                "a prompt in the terminal, or a page in the browser, for trying a model",
            ),
            "serve": ("limba.addons.serve.command", "answers and vectors of a model over HTTP, for a team"),
        },
        gin_names={
            "limba.addons.serve.command": ("serve",),
            "limba.addons.serve.engine": ("Engine",),
            "limba.addons.serve.try_model": ("try_model",),
        },
        gin_programs=("limba.addons.serve.command.serve", "limba.addons.serve.try_model.try_model"),
        other_names={"limba.commands": "limba.addons", "limba.commands.serve": "limba.addons.serve"},
    ),
    "plan": Addon(
        {
            "lint": (
                "limba.addons.plan.lint.command",
                "find what would hurt in a training, before any accelerator is touched",
            ),
            "plan": (
                "limba.addons.plan.command",
                "whether a training fits a TPU slice or GPU box, how fast, with which layout",
            ),
            "profile": (
                "limba.addons.plan.profile.command",
                "run some steps of a training, and show where their time goes",
            ),
            "gin-check": ("limba.addons.plan.lint.gin_check", "parse gin files and resolve every name in them"),
        },
        parts={"launch": "limba.addons.plan.manifests.command"},
    ),
    "vocab_build": Addon(
        {
            "vocab build": (
                "limba.addons.vocab_build.command",
                "train SentencePiece, WordPiece or byte-level BPE on a corpus",
            )
        }
    ),
    "surgery": Addon(
        {
            "vocab check": ("limba.addons.surgery.check", "prove that all tokenizers of a model give the same ids"),
            "vocab trim": (
                "limba.addons.surgery.trim",
                "leave out the pieces that a corpus does not use, of a T5 or an encoder and its tokenizer",
            ),
            "vocab replace": ("limba.addons.surgery.replace", "give a trained T5 or encoder another vocabulary"),
            "vocab extend": (
                "limba.addons.surgery.extend",
                "add pieces of a corpus to a T5 or an encoder and its vocabulary",
            ),
        },
    ),
    "engines": Addon(
        conversions={
            "to-ct2": (
                "limba.addons.engines.to_ct2",
                "write a folder for CTranslate2 from a run or a Hugging Face folder",
            ),
            "to-onnx": (
                "limba.addons.engines.to_onnx",
                "write ONNX files for ONNX Runtime and Optimum from a run or a Hugging Face folder",
            ),
            "to-gguf": ("limba.addons.engines.to_gguf", "write a GGUF file for llama.cpp from a T5"),
        },
        parts={"check": "limba.addons.engines.folder_check", "serve": "limba.addons.engines.kept_folder"},
    ),
    "peft": Addon(
        conversions={
            "to-peft": ("limba.addons.peft.to_peft", "write an adapter that PEFT loads from a checkpoint of a LoRA"),
            "from-peft": (
                "limba.addons.peft.from_peft",
                "write a LoRA checkpoint and its gin files from an adapter of PEFT",
            ),
        }
    ),
    "repair": Addon(
        conversions={"repair": ("limba.addons.repair.command", "write a folder again without what is wrong with it")},
        parts={"folder": "limba.addons.repair.folder_check"},
    ),
    "half_precision": Addon(parts={"check_alone": "limba.addons.half_precision.check_dtype"}),
    "vectors": Addon(
        {"embed": ("limba.addons.vectors.embed", "vectors of texts from a checkpoint's encoder, in a file")},
        {
            "to-sentence-transformers": (
                "limba.addons.vectors.to_sentence_transformers",
                "write a folder of sentence-transformers from an encoder, a T5's too",
            )
        },
        parts={"check": "limba.addons.vectors.folder_check"},
        gin_names={"limba.addons.vectors.embed": ("embed",)},
        gin_programs=("limba.addons.vectors.embed.embed",),
    ),
    "t5gemma": Addon(
        conversions={
            "from-gemma": (
                "limba.addons.t5gemma.from_gemma",
                "make a T5Gemma of a decoder of Gemma: encoder and decoder begin with its layers",
            )
        },
        families=("limba.addons.t5gemma.t5gemma", "limba.addons.t5gemma.t5gemma2"),
    ),
    "bart": Addon(
        families=("limba.addons.bart.bart_family", "limba.addons.bart.mbart_family"),
        gin_modules=("limba.addons.bart",),
    ),
    "encoders": Addon(
        families=tuple(
            f"limba.addons.encoders.{name}"
            for name in (
                *("mpnet", "roformer", "modernbert", "distilbert", "eurobert", "nomic_bert", "electra", "deberta_v2"),
            )
        )
    ),
    "kernels": Addon(
        parts={
            "attention": "limba.addons.kernels.fused_attention",
            "layer_norm_gpu": "limba.addons.kernels.layer_norm_gpu",
        }
    ),
    "longt5": Addon(
        families=("limba.addons.longt5.longt5_family",),
        gin_modules=("limba.addons.longt5",),
        former_fields={"encoder_attention_type": "full", "local_radius": 127, "global_block_size": 16},
    ),
    "experts": Addon(
        families=("limba.addons.experts.switch_family",),
        gin_modules=("limba.addons.experts",),
        t5x_names="limba.addons.experts.t5x_modules",
    ),
    "block_sparse": Addon(
        parts={"sparse_attention": "limba.addons.block_sparse.sparse_attention"},
        gin_modules=("limba.addons.block_sparse",),
        other_names={"limba.network.encoders.block_layout": "limba.addons.block_sparse.block_layout"},
    ),
    "spikes": Addon(
        parts={"spikes": "limba.addons.spikes.going_back"}, other_names={"limba.training.spikes": "limba.addons.spikes"}
    ),
    "spactor": Addon(
        gin_modules=("limba.addons.spactor",), other_names={"limba.models.spactor": "limba.addons.spactor.spactor"}
    ),
    "nort5": Addon(families=("limba.addons.nort5.nort5_family",), gin_modules=("limba.addons.nort5",)),
    # Tasks and corpora, which have no command: their modules are named in gin files and with --module.
    "diacritics": Addon(
        gin_modules=tuple(f"limba.addons.diacritics.{name}" for name in ("diacritics_tasks", "marks", "scores")),
        gin_names={"limba.addons.diacritics.romanian": ("mt5_vocabulary", "vocabulary")},
        other_names={
            "tasks.diacritics": "limba.addons.diacritics",
            "tasks.examples.romanian": "limba.addons.diacritics.romanian",
            "tasks.examples.diacritics_small": "limba.addons.diacritics.diacritics_small",
        },
    ),
    "instructions": Addon(
        gin_modules=("limba.addons.instructions.instruction_files", "limba.addons.instructions.instruction_tasks"),
        other_names={
            "tasks.supervised.instructions": "limba.addons.instructions",
            "tasks.examples.speedrun": "limba.addons.instructions.speedrun",
            "limba.addons.examples.speedrun": "limba.addons.instructions.speedrun",
        },
        names=dict.fromkeys(
            (
                "limba.tasks.supervised.register_instruction_mixture",
                "limba.tasks.supervised.register_instruction_task",
            ),
            "limba.addons.instructions.instruction_tasks",
        ),
    ),
    "word_labels": Addon(
        gin_modules=("limba.addons.word_labels",),
        other_names={"tasks.supervised.token_labels": "limba.addons.word_labels.token_labels"},
        names={
            "limba.tasks.supervised.LabelTokens": "limba.addons.word_labels.token_labels",
            "limba.tasks.supervised.PieceDataset": "limba.addons.word_labels.token_dataset",
            "limba.tasks.supervised.TokenDataset": "limba.addons.word_labels.token_dataset",
            "limba.tasks.supervised.register_token_task": "limba.addons.word_labels.token_labels",
        },
    ),
    "examples": Addon(other_names={"tasks.examples": "limba.addons.examples"}),
}


def other_names() -> dict[str, str]:
    """Those of all add-ons, by other name."""
    return {other: real for addon in ADDONS.values() for other, real in addon.other_names.items()}


def named(package: str, name: str) -> Any:
    """What a package of the core has by this name of an add-on's, for its `__getattr__`.

    Raises:
      AttributeError: if no add-on has it.
    """
    for addon in ADDONS.values():
        if module := addon.names.get(f"{package}.{name}"):
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def families() -> Iterator[Any]:
    """The families of models of all add-ons."""
    for addon in ADDONS.values():
        for module in addon.families:
            yield importlib.import_module(module).FAMILY


def parts(what: str) -> Iterator[Any]:
    """The modules of add-ons that are for this, a key of `PARTS`."""
    assert what in PARTS, what
    for addon in ADDONS.values():
        if what in addon.parts:
            yield importlib.import_module(addon.parts[what])


def has(what: str) -> bool:
    """Whether an add-on has this part; nothing is imported."""
    return any(what in addon.parts for addon in ADDONS.values())


def part(what: str, needed_by: str) -> Any:
    """The one module that is for this.

    Raises:
      ValueError: if no add-on has it; `needed_by` is the subject of its sentence.
    """
    if (found := next(parts(what), None)) is None:
        raise ValueError(f"{needed_by} needs an add-on that this Limba does not have: {what} (limba/addons/table.py).")
    return found
