"""What names an inventory on the command line: a file, or `@SOURCE`, or `@SOURCE --with FILE`. No IO."""

from __future__ import annotations

from dataclasses import dataclass

MARK = "@"
_WITH = " --with "


@dataclass(frozen=True)
class Reference:
    """Where the hosts and the other keys of an inventory come from."""

    source: str | None
    """Such as `@slurm`; None: the hosts are in the file."""
    file: str | None
    """None: only defaults."""

    @property
    def words(self) -> tuple[str, ...]:
        """As on a command line."""
        return (
            *filter(None, (self.source,)),
            *(("--with",) if self.source and self.file else ()),
            *filter(None, (self.file,)),
        )


def parse(text: str) -> Reference:
    if not is_source(text):
        return Reference(None, text)
    source, _, file = text.partition(_WITH)
    return Reference(source, file or None)


def is_source(text: str) -> bool:
    return text.startswith(MARK)


def join(source: str, file: str) -> str:
    """The one text that stands for both, such as in $DDP_ORCH_INVENTORY."""
    return f"{source}{_WITH}{file}"
