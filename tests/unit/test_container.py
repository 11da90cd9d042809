"""The key `container` of an inventory."""

from __future__ import annotations

import json

import pytest

from orchestrator.answers.add import Template
from orchestrator.errors import InventoryError
from orchestrator.inventory import model, writing
from orchestrator.inventory.container import has_image, is_entered
from orchestrator.plan import plan
from orchestrator.ssh.program_dialer import enter_command


def test_a_container_is_started_or_entered_or_there_is_none() -> None:
    text = "hosts: [{name: a, container: none}, b, {name: c, container: x:1}]\nrun: {container: {enter: box}}\n"
    hosts = model.parse(text, "i").hosts
    assert [(has_image(host.container), is_entered(host.container)) for host in hosts] == [
        (False, False),
        (False, True),
        (True, False),
    ]


@pytest.mark.parametrize(
    "container", ["x:1", "{image: /x.sif, mounts: [/data]}", "{enter: box, engine: docker}", "{image: x, env: {A: 1}}"]
)
def test_an_inventory_that_is_written_means_the_same(container: str) -> None:
    inventory = model.parse(f"hosts: [a]\nrun: {{container: {container}}}\n", "i")
    assert model.parse(writing.render(inventory), "i").run.container == inventory.run.container


@pytest.mark.parametrize(
    ("container", "key"),
    [
        ("{image: x, enter: box}", "image"),
        ("{enter: box, mounts: [/data]}", "mounts"),
        ("{enter: box, engine: apptainer}", "engine"),
        ("{enter: 'box; reboot'}", "enter"),
        ("{enter: --privileged}", "enter"),
        ("{image: x, env: {RANK: 1}}", "env.RANK"),
        ("{image: x, env: [A]}", "env"),
    ],
)
def test_keys_that_a_running_container_cannot_have_are_refused(container: str, key: str) -> None:
    with pytest.raises(InventoryError, match=f"i:2: run.container.{key}: "):
        model.parse(f"hosts: [a]\nrun: {{container: {container}}}\n", "i")


def test_one_engine_is_tried_where_the_inventory_names_it() -> None:
    for engine, tried in (("auto", "box podman docker"), ("docker", "box docker")):
        text = f"hosts: [a]\nrun: {{container: {json.dumps({'enter': 'box', 'engine': engine})}}}\n"
        container = model.parse(text, "i").run.container
        assert is_entered(container)
        assert enter_command(container).endswith(f"' {tried}")


def test_variables_of_a_container_are_between_those_of_the_run_and_of_the_host() -> None:
    text = (
        "hosts: [{name: a, env: {C: host}}, {name: b, container: none}]\n"
        "run: {env: {A: run, B: run}, container: {image: x, env: {B: box, C: box, D: '{host}'}}}\n"
    )
    inventory = model.parse(text, "i")
    template = Template(("-u", "x.py"), inventory.run.env, {"E": "up"})
    envs = [dict(plan.make_node(host, template, "run").env) for host in inventory.hosts]
    assert envs == [{"A": "run", "B": "box", "C": "host", "D": "a", "E": "up"}, {"A": "run", "B": "run", "E": "up"}]


def test_a_secret_has_no_value_in_a_container() -> None:
    with pytest.raises(InventoryError, match=r"i:2: run\.container\.env\.TOKEN: also in run\.secrets"):
        model.parse("hosts: [a]\nrun: {secrets: [TOKEN], container: {image: x, env: {TOKEN: 1}}}\n", "i")
