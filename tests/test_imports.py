"""Imports point down only: `tests/house.py` has the floors, docs/architecture.md the picture."""

import ast
import re

import pytest

from tests import house

MODULES = house.modules()
IMPORTS = house.all_imports()

# The modules of the engine that import `tasks`: inside functions, because much comes in with it. Add-ons may.
DOORS = {
    "limba.inference.tasks_door": "what opens, checks and evaluates tasks, for all rooms above it",
    "limba.training.from_counts.counted_texts": "counts of a task's texts, for the start that is made of them",
}

# Foreign packages that a package never imports, and what they are too heavy or too late for.
NEVER = {
    "limba": ("tensorflow", "tensorflow_text", "seqio", "datasets", "torch", "transformers"),
    "tasks": ("jax", "flax", "torch", "transformers"),
}
# Where SeqIO's tasks are read, or ours are given to SeqIO: all else of `tasks` runs without TensorFlow.
OF_SEQIO = (
    "limba.addons.seqio",
    "tasks.t5",
)
NEVER_AT_THE_TOP = {
    "convert": ("tensorflow", "seqio", "datasets", "torch", "transformers", "tasks"),
    "limba.addons": ("tensorflow", "datasets", "torch", "transformers"),
}


def test_every_module_is_in_a_room():
    homeless = sorted({house.room_of(module) for module in MODULES} - house.FLOOR.keys())
    assert not homeless, f"no floor in tests/house.py has {homeless}"
    empty = sorted(house.FLOOR.keys() - {house.room_of(module) for module in MODULES})
    assert not empty, f"tests/house.py lists rooms that are not there: {empty}"


def test_imports_point_down():
    up = [
        f"{one.module} imports {one.imported}"
        for (a, b), found in house.arrows(IMPORTS).items()
        for one in found
        if house.FLOOR[b] >= house.FLOOR[a]
    ]
    assert not up, up


def test_no_circles():
    assert house.circle(IMPORTS) == []


def test_only_the_doors_import_tasks():
    importing = {one.module for one in IMPORTS if (one.module + one.imported).startswith("limba") and _is_task(one)}
    assert importing == DOORS.keys()
    assert not [one for one in IMPORTS if one.module in DOORS and _is_task(one) and not one.lazy]


def _is_task(one):
    return _package(one) == "limba" and one.imported.partition(".")[0] == "tasks"


def _package(one):
    return house.ADDONS_FOLDER if house.is_addon(one.module) else one.module.partition(".")[0]


def test_no_addon_is_imported():
    """Not by the core, and not by another add-on: the table names their modules, and `python -m` and gin files do."""
    assert not [
        one
        for one in IMPORTS
        if house.is_addon(one.imported) and house.room_of(one.imported) != house.room_of(one.module)
    ]


@pytest.mark.parametrize("package", (*house.PACKAGES, house.ADDONS_FOLDER))
def test_foreign_packages_stay_where_they_belong(package):
    for one in IMPORTS:
        if _package(one) == package and not one.module.startswith(OF_SEQIO):
            foreign = one.imported.partition(".")[0]
            assert foreign not in (*NEVER.get(package, ()), "tests", "benchmarks"), one
            assert one.lazy or foreign not in NEVER_AT_THE_TOP.get(package, ()), one


def test_only_what_is_for_seqio_imports_tensorflow():
    found = {
        one.module for one in IMPORTS if one.imported.partition(".")[0] in ("tensorflow", "seqio") and not one.lazy
    }
    assert {module for module in found if not module.startswith(OF_SEQIO)} == set()
    assert {room for room in OF_SEQIO if any(module.startswith(room) for module in found)} == set(OF_SEQIO)
    # And importing these is done in functions only.
    assert not [
        one
        for one in IMPORTS
        if one.imported.startswith(OF_SEQIO) and not one.module.startswith(OF_SEQIO) and not one.lazy
    ]


def test_a_new_file_an_arrow_up_and_a_circle_are_found():
    """The checks above can fail."""
    assert house.room_of("limba.new_room.file") not in house.FLOOR
    up = [*IMPORTS, house.Import("limba.files.storage", "limba.training.loop", lazy=True)]
    assert ("limba.files", "limba.training") in house.arrows(up)
    assert "limba.files.storage" in house.circle(up)


@pytest.mark.parametrize("folder", [x for x in house.folders() if x not in (*house.PACKAGES, "limba/addons")])
def test_folders_say_what_they_are_and_are_not_for_one_file(folder):
    files, _ = house.folders()[folder]
    assert files > 2, "a file alone in a folder (its face does not count)"
    face = ast.parse((house.ROOT / folder / "__init__.py").read_text(encoding="utf-8"))
    assert re.search("may import it|imports it", ast.get_docstring(face) or "")


def test_floors_folders_files_functions_and_walks_are_not_too_large():
    assert house.problems() == []


def test_the_page_about_the_architecture_has_each_room():
    page = (house.ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `([\w/]+)` \| [^|]+ \| `([\w/]+\.py)` \|$", page, flags=re.M)
    assert [(room.replace("/", "."), int(floor)) for floor, room, _ in rows] == list(house.FLOOR.items())
    assert not [f"{room}/{file}" for _, room, file in rows if not (house.ROOT / room / file).is_file()]
