"""Shell scripts that go on after a line that fails."""

from __future__ import annotations

import pytest

from orchestrator.plan import errexit


@pytest.mark.parametrize(
    ("words", "text", "goes_on"),
    [
        ("bash run.sh", "pip install x\ntorchrun train.py\n", True),
        ("/bin/sh run.sh a", "cd code\n\npython train.py\n", True),
        ("bash run.sh", "#!/bin/bash\n# notes\nexport A=1\nB=2\ntorchrun train.py\n", False),  # one command
        ("bash run.sh", "torchrun --nnodes 2 \\\n  --nproc_per_node 4 \\\n  train.py\n", False),
        ("bash run.sh", "set -e\npip install x\ntorchrun train.py\n", False),
        ("bash run.sh", "  set -x -euo pipefail\npip install x\ntorchrun train.py\n", False),
        ("bash run.sh", "set -o errexit\npip install x\ntorchrun train.py\n", False),
        ("bash -xe run.sh", "pip install x\ntorchrun train.py\n", False),
        ("bash run.sh", "#!/bin/bash -e\npip install x\ntorchrun train.py\n", False),
        ("python run.sh", "pip install x\ntorchrun train.py\n", False),
        ("run.sh", "pip install x\ntorchrun train.py\n", False),
    ],
)
def test_only_the_exit_code_of_the_last_command_counts(words: str, text: str, goes_on: bool) -> None:
    assert errexit.goes_on(words.split(), "run.sh", text.encode()) is goes_on
