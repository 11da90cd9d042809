"""A file of the user that packages import in place of a module. The tracebacks are real ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.diagnosis import transcript
from orchestrator.diagnosis.engine import diagnose
from orchestrator.output.finding import Finding

HERE = "/home/ann/.local/state/ddp-orch/0123456789ab/code/0f/"
PACKAGES = "/v/lib/python3.11/site-packages/"


def first_of(error: str, *frames: tuple[str, str]) -> Finding:
    text = "Traceback (most recent call last):\n" + "".join(
        f'  File "{path}", line 9, in <module>\n    {code}\n' for path, code in frames
    )
    return diagnose(transcript.parse_logs([("gpu-01.log", text + error + "\n")])).findings[0]


BY_SCRIPT = (f"{HERE}train.py", "import torch")
BY_TORCH = (f"{PACKAGES}torch/cuda/_utils.py", "from cuda.bindings import (  # pyrefly: ignore[missing-import]")
INIT = (f"{PACKAGES}torch/__init__.py", "_C._initExtension(_manager_path())")
BY_NN = (f"{PACKAGES}torch/nn/__init__.py", "from torch.nn.parameter import (  # usort: skip")
BY_SYMPY = (f"{PACKAGES}sympy/core/sympify.py", "import mpmath.libmp as mlib")
SYMBOLS = (f"{PACKAGES}torch/fx/experimental/symbolic_shapes.py", "from sympy import S")
NO_ZEROS = (
    "AttributeError: partially initialized module 'torch' has no attribute 'zeros' "
    "(most likely due to a circular import)"
)


@pytest.mark.parametrize(
    ("error", "frames", "file"),
    [
        (NO_ZEROS, [BY_SCRIPT, INIT, BY_TORCH, (f"{HERE}cuda.py", "DEVICE = torch.zeros(1).device")], "cuda.py"),
        (NO_ZEROS, [BY_SCRIPT, BY_TORCH, (f"{HERE}cuda/__init__.py", "x = torch.zeros(1)")], "cuda/"),
        ("KeyError: 'LR'", [BY_SCRIPT, BY_TORCH, (f"{HERE}cuda.py", 'os.environ["LR"]')], "cuda.py"),
        (
            f"ImportError: cannot import name 'S' from 'sympy' ({HERE}sympy.py)",
            [BY_SCRIPT, SYMBOLS],
            "sympy.py",
        ),
        (
            "ModuleNotFoundError: No module named 'mpmath.libmp'; 'mpmath' is not a package",
            [BY_SCRIPT, BY_SYMPY],
            "mpmath.py",
        ),
        (
            "AttributeError: module 'random' has no attribute 'Random' (consider renaming "
            f"'{HERE}random.py' since it has the same name as the standard library module named 'random')",
            [BY_SCRIPT, ("/usr/lib/python3.13/tempfile.py", "from random import Random as _Random")],
            "random.py",
        ),
    ],
)
def test_a_file_that_hides_a_module_is_named(error: str, frames: list[tuple[str, str]], file: str) -> None:
    first = first_of(error, *frames)
    assert (first.code, first.confidence) == ("script-import-error", "high")
    assert file in first.message and file in first.fix


def test_a_file_that_breaks_torchrun_itself_is_named() -> None:
    frames = [("<frozen runpy>", ""), INIT, BY_TORCH, (f"{HERE}cuda.py", "from torch import nn"), BY_NN]
    text = "Traceback (most recent call last):\n" + "".join(
        f'  File "{path}", line 9, in <module>\n    {code}\n' for path, code in frames
    )
    lines = transcript.parse_logs([("gpu-01.log", text + NO_ZEROS + "\n")])
    first = diagnose([replace(line, agent=True) for line in lines]).findings[0]
    assert (first.code, first.confidence) == ("script-import-error", "high")
    assert "cuda.py" in first.fix


def test_where_torch_swallows_the_error_of_the_file_its_kind_is_named() -> None:
    twice = (
        'RuntimeError: generic_type: cannot initialize type "GradBucket": an object with that name is already defined'
    )
    first = first_of(twice, BY_SCRIPT, INIT)
    assert (first.code, first.confidence) == ("script-import-error", "medium")
    assert "cuda.py" in first.fix


@pytest.mark.parametrize(
    ("error", "frames"),
    [
        ("KeyError: 'LR'", [(f"{HERE}train.py", "import config"), (f"{HERE}config.py", 'os.environ["LR"]')]),
        # a package may import a file of the user on purpose
        (
            "KeyError: 'LR'",
            [(f"{PACKAGES}hydra/utils.py", "importlib.import_module(name)"), (f"{HERE}model.py", 'os.environ["LR"]')],
        ),
        (f"ImportError: cannot import name 'Net' from 'model' ({HERE}model.py)", [(f"{HERE}train.py", "import model")]),
        (
            f"ImportError: cannot import name 'S' from 'sympy' ({PACKAGES}sympy/__init__.py)",
            [BY_SCRIPT, SYMBOLS],
        ),
    ],
)
def test_of_other_errors_nothing_is_said_about_hidden_modules(error: str, frames: list[tuple[str, str]]) -> None:
    first = first_of(error, *frames)
    assert "Rename" not in first.fix
