"""Pack the node program into one archive, named by the hash of its content. Reads its sources; sends nothing."""

from __future__ import annotations

import hashlib
import io
import stat
import zipfile
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "node"
_MAIN = b"import sys\n\nfrom node.__main__ import main\n\nraise SystemExit(main(sys.argv[1:]))\n"


@dataclass(frozen=True)
class NodeProgram:
    sha256: str
    data: bytes  # a zip file that Python can run
    sources: int = 0  # bytes of the unpacked modules


def node_program(folder: Path = SOURCES) -> NodeProgram:
    """Pack `folder` as the package `node`, with a `__main__.py`. The same sources give the same bytes."""
    sources = {f"node/{file.relative_to(folder).as_posix()}": file.read_bytes() for file in folder.rglob("*.py")}
    buffer = io.BytesIO()
    # not compressed: the output of deflate differs between zlib versions, and every start would have to inflate it
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, source in sorted({**sources, "__main__.py": _MAIN}.items()):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3  # Unix, even if it is built on another system
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, source)
    data = buffer.getvalue()
    return NodeProgram(hashlib.sha256(data).hexdigest(), data, sum(map(len, sources.values())))
