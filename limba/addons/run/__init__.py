"""`limba run`: a training from the keys of a Hugging Face script. Nothing but the command line imports it.

A run is three chapters, each with one frozen value as its result; what follows reads the second.

1. `keys/script_keys.py`: the command line and a JSON file become a `Request` (`keys/request.py`, the table of keys). No
   other file is read.
2. `planning.py`: the model, the data, an earlier run and the devices are looked up, once. The result is a `Plan`
   (`plan.py`): the request, complete, with what was found. `starting_model.py`, `data.py`, `columns.py`,
   `earlier_run.py` and `trainer_checkpoints.py` are what it asks.
3. `gin_text.py`: the plan becomes the text of a gin file. Nothing is looked up.

Then `command.py` runs the programs of `limba train`, `eval` and `infer`, and `results.py` writes the script's files.
The gin file of a fine-tuning names a function of `script_task.py`, which registers the task; the core asks it for the
example of a model card.
`core_words.py` is the one table of the keys that messages of the core name beside gin's settings.
"""
