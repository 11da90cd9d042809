"""The hosts that ssh_config names. Reads the file and those that it includes."""

from __future__ import annotations

import glob
import re
from pathlib import Path

MAX_INCLUDES = 16
FORGES = {"github.com", "gist.github.com", "ssh.github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "git.sr.ht"}


def configured_hosts(config: Path) -> list[str]:
    """The names in `Host` lines of an ssh_config and the files it includes, without patterns and git servers."""
    names: dict[str, None] = {}
    forges: set[str] = set()
    files = [config]
    for number, file in enumerate(files):  # grows while it is read
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        block: list[str] = []  # names of the current `Host` block
        for line in lines:
            match = re.fullmatch(r"\s*(host|hostname|user|include)(?:\s+|\s*=\s*)(.*?)\s*", line, re.IGNORECASE)
            if match is None:
                continue
            words = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|([^"\s]+)', match[2])]
            match match[1].lower():
                case "host":
                    block = [word for word in words if not re.search(r"[*?!#]", word)]
                    names.update(dict.fromkeys(block))
                case "hostname":
                    forges.update(block if FORGES.intersection(words) else ())
                case "user":
                    forges.update(block if words == ["git"] else ())
                case _ if number < MAX_INCLUDES:
                    # relative to ~/.ssh, as in ssh
                    files += [Path(path) for word in words for path in _included(word)]
    return [name for name in names if name not in FORGES | forges]


def _included(word: str) -> list[str]:
    return sorted(glob.glob(str(Path("~/.ssh").expanduser() / Path(word).expanduser())))
