"""`python -m trainer`, alone or under a launcher. Imports torch, which takes seconds, only once the flags are right."""

from __future__ import annotations

import os
import sys

from trainer.config import Config, ConfigError, expand_files, parse, refuse, replace_old
from trainer.place import Place, find


def main() -> None:
    speaks = True
    try:
        place = find(os.environ)
        speaks = place.rank == 0
        config = parse(sys.argv[1:])
    except ConfigError as error:
        refuse(error, speaks)  # the flags of all ranks are the same
    from torch.distributed.elastic.multiprocessing.errors import record

    code: object = 0
    for notice in replace_old(expand_files(sys.argv[1:]))[1]:
        if speaks:
            print(f"trainer: {notice}", file=sys.stderr, flush=True)
    try:
        # Under torchrun, a rank that fails leaves its traceback for torchrun's summary.
        record(start)(config, place)
    except SystemExit as end:  # of all ranks at once, after one has said why
        code = end.code
    except Exception:  # noqa: BLE001  shown as Python shows it
        sys.excepthook(*sys.exc_info())
        code = 1
    # All is done and saved, or said. The usual way out lets gloo's threads race with the end of the libraries they use:
    # now and then a rank that had come to its end died of "terminate called without an active exception" (SIGABRT).
    # It also takes a second to free all modules of torch, and after a failure the next attempt waits for that.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def start(config: Config, place: Place) -> None:
    if config.bench:
        from trainer.extras.bench import bench as work
    else:
        from trainer.loop import run as work
    from trainer.dist import joined

    with joined(config.device, place) as world:
        work(config, world)


if __name__ == "__main__":
    main()
