"""The node program as it is on a host after a first session: unpacked, and compiled by Python.

Most tests begin with it. Sending and compiling it again for each host of each test took a fifth of their time.
"""

from __future__ import annotations

import atexit
import compileall
import functools
import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from orchestrator.hosts.node_program import NodeProgram, node_program


@functools.cache
def _compiled(program: NodeProgram) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ddp-orch-node-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    mask = os.umask(0o077)
    zipfile.ZipFile(io.BytesIO(program.data)).extractall(folder)
    assert compileall.compile_dir(folder, quiet=1)
    os.umask(mask)
    return folder


def put(state: Path, program: NodeProgram | None = None, uid: int | None = None) -> None:
    """Put it into a state folder, which is made with mode 0700. `uid`: the owner of both; None: who calls this."""
    program = program or node_program()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = state / f"node-{program.sha256[:16]}"
    shutil.copytree(_compiled(program), folder)
    if uid is not None:
        for path in (state, folder, *folder.rglob("*")):
            os.chown(path, uid, uid)
