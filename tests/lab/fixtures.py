"""Labs for tests: `lab2`, `lab3` and `lab4` are shared and handed over clean; `make_lab(n, ...)` makes one to order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from .lab import Lab
from .waiting import wait_until

NAMES = frozenset({"lab2", "lab3", "lab4", "make_lab"})
SECONDS_TO_END = 60.0  # what a test leaves behind may take so long to end by itself, on a busy machine


@pytest.fixture(scope="session")
def shared_labs() -> Iterator[Callable[[int], Lab]]:
    labs: dict[int, Lab] = {}
    with contextlib.ExitStack() as stack:

        def get(n: int) -> Lab:
            if n not in labs:
                labs[n] = stack.enter_context(Lab(n))
            return labs[n]

        yield get


@pytest.fixture
def lab2(shared_labs: Callable[[int], Lab]) -> Iterator[Lab]:
    """Two hosts, shared with other tests: as new at the start, and no marked process may be left at the end."""
    yield from _clean(shared_labs(2))


@pytest.fixture
def lab3(shared_labs: Callable[[int], Lab]) -> Iterator[Lab]:
    """Three hosts, else as lab2."""
    yield from _clean(shared_labs(3))


@pytest.fixture
def lab4(shared_labs: Callable[[int], Lab]) -> Iterator[Lab]:
    """Four hosts, else as lab2."""
    yield from _clean(shared_labs(4))


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """`make_lab(n, ...)`, as Lab; ended with the test, and no marked process may be left in it."""
    with contextlib.ExitStack() as stack:
        labs = []

        def make(n: int, **options: object) -> Lab:
            labs.append(stack.enter_context(Lab(n, **options)))  # type: ignore[arg-type]
            return labs[-1]

        yield make
        for lab in labs:
            assert_nothing_left(lab)


def _clean(lab: Lab) -> Iterator[Lab]:
    try:
        yield lab
        assert_nothing_left(lab)
    finally:
        lab.reset()


def assert_nothing_left(lab: Lab) -> None:
    """Fail if a marked process is still there after a moment, and say which."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not lab.marked(), SECONDS_TO_END, "no marked process left")
    left = [
        f"{name}: pid {process.pid}: {' '.join(process.argv)}"
        for name, processes in lab.marked().items()
        for process in processes
    ]
    assert not left, "marked processes are left:\n" + "\n".join(left)
