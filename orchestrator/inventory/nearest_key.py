"""Which key was probably meant by one that is unknown. Pure."""

from __future__ import annotations

SIMILAR = 0.85  # of 1; a less similar key of the same section comes after one of another section


def nearest_key(name: str, section_keys: list[str], all_keys: list[str]) -> str | None:
    """The key that starts with `name`, as nproc_per_node with `nproc`, or is spelled like it."""
    from difflib import get_close_matches

    def near(keys: list[str]) -> list[str]:
        longer = [key for key in keys if key.startswith(f"{name}_")]
        return longer or get_close_matches(name, keys, 1, SIMILAR)

    less_similar = (*get_close_matches(name, section_keys, 1), *get_close_matches(name, all_keys, 1))
    return next(iter((*near(section_keys), *near(all_keys), *less_similar)), None)
