"""One quoting for all login shells, tried on those that this machine has."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.ssh.dialer import quote

ECHO = (sys.executable, "-I", "-S", "-c", "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])))")
SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh", "fish", "csh", "tcsh") if shutil.which(shell)]
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(TEXT, min_size=1, max_size=4))
@example(arguments=["", "'", '"', "\\", "\\\\", "a\\'b", "!", "!!", "a!b", "`id`", "$HOME", "$(id)", "~", "*", "a b"])
@example(
    arguments=["=ls", "%self", "{a,b}", "[a]", "#", "-n", "--", "&&", "|", ";", "<", ">", "^", "\t", "é\u200b", "\x1b"]
)
def test_arguments_arrive_as_they_are(shell: str, arguments: list[str]) -> None:
    if shell in ("csh", "tcsh"):
        arguments = [argument.replace("\n", "") for argument in arguments]  # beyond csh, and documented
    done = subprocess.run([shell, "-c", quote((*ECHO, *arguments))], capture_output=True, timeout=20)
    assert done.stdout.split(b"\0") == [argument.encode() for argument in arguments], done.stderr


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shell not in ("csh", "tcsh")])
def test_newlines_and_bytes_that_are_no_text_arrive(shell: str) -> None:
    argument = "a\nb\udcff\n"
    done = subprocess.run([shell, "-c", quote((*ECHO, argument))], capture_output=True, timeout=20)
    assert done.stdout == b"a\nb\xff\n", done.stderr


def test_plain_words_stay_readable() -> None:
    assert quote(["python3", "-m", "x.y", "/a/b-c_d:9"]) == "python3 -m x.y /a/b-c_d:9"


def test_nul_is_refused_as_no_shell_can_pass_it() -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote(["a\0b"])
