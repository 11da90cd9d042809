"""`python -m trainer`, alone or under a launcher. Imports torch, which takes seconds, only once the flags are right."""

from __future__ import annotations

import os
import sys

from trainer.config import ConfigError, parse, refuse
from trainer.place import find


def main() -> None:
    speaks = True
    try:
        place = find(os.environ)
        speaks = place.rank == 0
        config = parse(sys.argv[1:])
    except ConfigError as error:
        refuse(error, speaks)  # the flags of all ranks are the same
    from trainer.train import train

    code: object = 0
    try:
        train(config, place)
    except SystemExit as end:  # of all ranks at once, after one has said why
        code = end.code
    # All is done and saved, or said. The usual way out lets gloo's threads race with the end of the libraries they use:
    # now and then a rank that had come to its end died of "terminate called without an active exception" (SIGABRT).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
