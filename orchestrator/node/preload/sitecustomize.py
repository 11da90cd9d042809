"""The hook by which the user's python becomes a preloader. For the guard.

The guard starts the user's own command with this folder at the head of PYTHONPATH (ranks/preloader.py). Python imports
`sitecustomize` before it looks at its command line. In that process the import does not return: it serves the guard. It
returns in the forked ranks, where python continues with the command. So argv, __main__, sys.path and tracebacks are
made by python itself, and no frame of this module is on the stack.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # the type checker knows this name; importing it would load `typing`
if TYPE_CHECKING:
    from typing import Any

OPTIONS = "DDP_ORCH_PRELOAD"  # JSON, see forker.serve
CHECK = "DDP_ORCH_PRELOAD_CHECK"  # set where the guard only tests whether this python imports us
PATH_BEFORE = "DDP_ORCH_PRELOAD_PYTHONPATH"  # PYTHONPATH without this folder; missing where it is not set
PACKAGE = "ddp_orch_preload"


def main() -> None:
    """Returns in ranks, and where python was started with this folder for another reason."""
    if CHECK in os.environ:
        sys.ddp_orch_preload = True  # type: ignore[attr-defined]
        return
    options = os.environ.pop(OPTIONS, None)
    remove_traces()
    environment = dict(os.environ)
    try:
        import_hidden()
    finally:  # an exception is for python, after the fork
        if options is not None:
            load_forker().serve(options, environment)


def remove_traces() -> None:
    """Make sys.path, its cache and PYTHONPATH what they would be without this folder."""
    folder = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    before = os.environ.pop(PATH_BEFORE, None)
    if before is not None:
        os.environ["PYTHONPATH"] = before
    else:
        os.environ.pop("PYTHONPATH", None)


def import_hidden() -> None:
    """Import the sitecustomize that this one hides. The ImportError, where there is none, is what python expects."""
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")


def load_forker() -> Any:
    """The module `forker` of this folder. It and what it imports from here leave no trace."""
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(__file__)
    spec = spec_from_file_location(PACKAGE, os.path.join(folder, "__init__.py"))
    assert spec is not None
    sys.modules[PACKAGE] = module_from_spec(spec)
    forker = import_module(PACKAGE + ".forker")
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    sys.path_importer_cache.pop(folder, None)
    return forker


main()
