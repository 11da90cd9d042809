"""Our reading of .gitignore files against git's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.gitignore import Gitignore

NAMES = st.sampled_from(
    ["a", "b", "ab", "c.py", "d.o", "build", "keep", "#x", "!y", "sp ", "[", "]", "\\", "*", "é", "-"]
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
GLOBS = (
    r"* */ *.py /* ** **/ /** **/a a/** a/**/b a**b ***/a a/ /a a/b ? a? ?/b ?? a/*/b **b b**/a / // \#x #x "
    r"\!y \ \\ \* \a a\ é [ab] [!ab] [^a] [a-c]* []a] []-a] [a [z-a] [a-] [[:alpha:]] [[:nope:]] [\]] [a\-c]"
)
PATTERNS = st.one_of(
    st.sampled_from([*GLOBS.split(), "", " ", "sp ", "sp\\ "]),
    st.text(alphabet="ab*?[]!^-\\/. #", max_size=8),
)
LINES = st.lists(st.tuples(st.booleans(), PATTERNS).map(lambda rule: ("!" if rule[0] else "") + rule[1]), max_size=6)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(("git", "init", "--quiet"), cwd=folder, check=True)
    return folder


def said_by_git(repository: Path, content: bytes, paths: list[str]) -> dict[str, str]:
    """Path -> the pattern that decides about it or a folder above it, "" for none."""
    (repository / ".gitignore").write_bytes(content)
    asked = b"".join(path.encode() + b"\0" for path in paths)
    command = (
        "git",
        "-c",
        "core.excludesFile=",
        "check-ignore",
        "-z",
        "--stdin",
        "--verbose",
        "--non-matching",
        "--no-index",
    )
    done = subprocess.run(command, cwd=repository, input=asked, capture_output=True)
    fields = done.stdout.decode().split("\0")
    return {path: pattern for _, _, pattern, path in zip(*[iter(fields)] * 4, strict=False)}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, st.lists(PATHS, min_size=1, max_size=20, unique=True))
def test_it_says_what_git_says(repository: Path, lines: list[str], paths: list[str]) -> None:
    content = "\n".join(lines).encode()
    rules = Gitignore(content)

    def excluded(path: str) -> bool:
        parts = path.split("/")
        folders = ["/".join(parts[:count]) + "/" for count in range(1, len(parts))]
        return any(rules.excludes(folder) for folder in folders) or bool(rules.excludes(path))

    git = said_by_git(repository, content, paths)
    assert {path: excluded(path) for path in paths} == {
        path: bool(git[path]) and not git[path].startswith("!") for path in paths
    }


def test_the_idiom_for_python_files_only() -> None:
    rules = Gitignore(b"*\n!*/\n!*.py\n")
    assert [rules.excludes(path) for path in ("data.bin", "pkg/", "pkg/data.bin", "pkg/mod.py")] == [
        True,
        False,
        True,
        False,
    ]


def test_line_ends_of_windows_a_byte_order_mark_and_bytes_that_are_not_utf8() -> None:
    rules = Gitignore(b"\xef\xbb\xbfa\r\n\xff*\r\n")
    assert rules.excludes("a")
    assert rules.excludes(b"\xff\xfe".decode(errors="surrogateescape"))
    assert rules.excludes("b") is None
