"""Which inventory a command takes without being given one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.commands.context import load_inventory
from orchestrator.errors import InventoryError


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DDP_ORCH_INVENTORY", raising=False)
    path = tmp_path / "inventory.yaml"
    path.write_text("hosts: [a]")
    path.chmod(0o644)
    return path


def names(given: str | None = None) -> list[str]:
    return [host.name for host in load_inventory(given).hosts]


def test_an_inventory_that_others_may_write_to_is_taken_only_when_it_is_named(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names() == ["a"]
    inventory.chmod(0o666)
    with pytest.raises(InventoryError, match=r"inventory\.yaml: .*\b666\b.* -i inventory\.yaml"):
        names()
    assert names("inventory.yaml") == ["a"]
    monkeypatch.setenv("DDP_ORCH_INVENTORY", "inventory.yaml")
    assert names() == ["a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("as_link", [False, True])
def test_an_inventory_of_another_user_is_taken_only_when_it_is_named(inventory: Path, as_link: bool) -> None:
    if as_link:
        inventory.rename("mine.yaml")
        inventory.symlink_to("mine.yaml")
    os.chown(inventory, 65534, 65534, follow_symlinks=False)
    with pytest.raises(InventoryError, match=r"inventory\.yaml: .*\bnobody\b.* -i inventory\.yaml"):
        names()
    assert names("inventory.yaml") == ["a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_group_that_is_the_users_own_may_write(inventory: Path) -> None:
    inventory.chmod(0o664)
    assert names() == ["a"]  # root's group is root
    os.chown(inventory, 0, 1)
    with pytest.raises(InventoryError, match="mode 664"):
        names()
