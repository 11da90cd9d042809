"""Which installed modules a script imports in any case, and which variables it sets."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from orchestrator.node.preload import script_modules

FILES = {
    "train.py": """
from __future__ import annotations
import os, torch.nn as nn
from transformers import AutoModel, Trainer
from torch import *
import models
from models import heads
from lib.losses import focal
from data import tokens
try:
    import apex
except ImportError:
    apex = None
if True:
    import wandb
def main():
    import pandas
""",
    "models/__init__.py": "from . import blocks\nfrom .deep.inner import thing\n",
    "models/blocks.py": "import einops",
    "models/heads.py": "from ..models import blocks\nimport timm",
    "models/deep/inner.py": "import numpy.random",
    "models/unused.py": "import unused",
    "lib/losses.py": "import scipy",
    "data/notes.txt": "no package: the installed `data` is meant",
    "package/__init__.py": "import first",
    "package/__main__.py": "import second\nfrom .part import x",
    "package/part.py": "import third",
    "broken.py": "import good\nfrom models import blocks\nimport a b",
    "hides.py": "import sys\nsys.path.append('..')\nimport torch",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def found(folder: Path, *command: str) -> list[str]:
    imports = script_modules.find(["python", "-u", *command], str(folder)).imports
    return [each.module + "".join(f" {name}" for name in each.names) for each in imports]


def test_the_script_and_its_own_files_are_followed(folder: Path) -> None:
    assert sorted(found(folder, "train.py", "--lr", "1")) == [
        "data tokens",
        "einops",
        "numpy.random",
        "os",
        "scipy",
        "timm",
        "torch",
        "torch.nn",
        "transformers AutoModel Trainer",
    ]


def test_a_module_brings_its_package(folder: Path) -> None:
    assert found(folder, "-m", "package") == ["first", "second", "third"]
    assert found(folder, "-m", "models.blocks") == ["einops", "numpy.random"]


def test_a_program_on_the_command_line_is_read(folder: Path) -> None:
    assert found(folder, "-c", "import torch\nimport models.heads") == ["torch", "einops", "numpy.random", "timm"]


@pytest.mark.parametrize("script", ["broken.py", "hides.py", "absent.py"])
def test_nothing_is_found_where_the_script_cannot_be_understood(folder: Path, script: str) -> None:
    assert found(folder, script) == []


def test_two_files_that_import_each_other_end(folder: Path) -> None:
    (folder / "a.py").write_text("import b, one")
    (folder / "b.py").write_text("import a, two")
    assert found(folder, "a.py") == ["one", "two"]


def test_a_script_in_a_folder_of_its_own_finds_its_neighbours(folder: Path) -> None:
    assert found(folder, "models/heads.py") == ["timm", "einops", "numpy.random"]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("os.environ['A'] = '1'", {"A"}),
        ("from os import environ\nenviron['A'] = '1'", {"A"}),
        ("def main():\n    if x:\n        os.environ.setdefault('A', '1')", {"A", "1"}),
        ("os.environ.update({'A': x, 'B': x}, C=x)", {"A", "B", "C"}),
        ("os.environ |= {'A': x}", {"A"}),
        ("os.putenv('A', '1')\nos.unsetenv('B')", {"A", "B"}),
        ("del os.environ['A']\nos.environ.pop('B', None)", {"A", "B"}),
        ("for name in ('A', 'B'):\n    os.environ[name] = '1'", set()),  # not seen
        ("rank = os.environ['RANK']\nos.environ.get('LOCAL_RANK', '0')", set()),
        ("table['A'] = 1\ntable.update(B=2)\nenv = 3", set()),
        ("os.environ['A'] = '1'\nimport a b", set()),  # not python
    ],
)
def test_variables_that_the_script_sets(folder: Path, code: str, names: set[str]) -> None:
    (folder / "part.py").write_text(f"import os\n{code}")
    (folder / "script.py").write_text("import part")
    for script in ("part.py", "script.py"):
        assert script_modules.find(["python", "-u", script], str(folder)).variables == names


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    import part\nexcept ImportError:\n    part = None",
        "if True:\n    from part import x",
        "def main():\n    import package.part",
        "def main():\n    from models import later",
        "if True:\n    import between",
        "import importlib\nimportlib.import_module('part')",
    ],
)
def test_variables_are_also_looked_for_in_files_that_may_be_imported(folder: Path, code: str) -> None:
    for name in ("part", "package/part", "models/later"):
        (folder / f"{name}.py").write_text("import os, unused\nos.environ['A'] = '1'\n")
    (folder / "between.py").write_text("import part")
    (folder / "script.py").write_text(f"import torch\n{code}\n")
    script = script_modules.find(["python", "-u", "script.py"], str(folder))
    assert script.variables == {"A"}
    assert "unused" not in [each.module for each in script.imports]


def test_a_file_that_is_imported_in_any_case_counts_as_such(folder: Path) -> None:
    (folder / "part.py").write_text("import one")
    (folder / "script.py").write_text("if True:\n    import part\nimport between")
    (folder / "between.py").write_text("import part")
    assert found(folder, "script.py") == ["one"]


def test_a_file_with_an_invalid_escape_is_read_without_a_warning(folder: Path) -> None:
    (folder / "script.py").write_text("import os\nos.environ['A'] = '\\d'")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert script_modules.find(["python", "-u", "script.py"], str(folder)).variables == {"A"}


def test_reading_a_script_does_not_make_modules_warn_again(folder: Path) -> None:
    (folder / "script.py").write_text("import os\nos.environ['A'] = '\\d'")
    source = compile("import warnings; warnings.warn('once', stacklevel=1)", "module.py", "exec")
    module: dict[str, object] = {"__name__": "module"}
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        exec(source, module)
        script_modules.find(["python", "-u", "script.py"], str(folder))
        exec(source, module)
    assert [str(warning.message) for warning in shown] == ["once"]
