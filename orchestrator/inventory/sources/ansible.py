"""The hosts of an Ansible inventory, or of one group: INI, YAML and `ansible-inventory --list`. No IO.

Reads the variables of a connection (https://docs.ansible.com/ansible/latest/inventory_guide/connection_details.html)
from the file itself. The folders group_vars and host_vars are not read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

from ..hostnames import MAX_HOSTS, nearest, quoted
from ..yaml_source import Map, Node, Scalar, Sequence, YamlProblem, compose
from .source_host import SourceHost, SourceProblem
from .ssh_line import parse_ssh_line

ALL = "all"
UNGROUPED = "ungrouped"
MAX_DEPTH = 64  # of groups in groups

_NAMES = {
    "ansible_ssh_host": "ansible_host",
    "ansible_ssh_user": "ansible_user",
    "ansible_ssh_port": "ansible_port",
    "ansible_private_key_file": "ansible_ssh_private_key_file",
    "ansible_ssh_extra_args": "ansible_ssh_common_args",
}
"""Old or equal names of variables."""
_USED = {
    *_NAMES.values(),
    "ansible_connection",
}
_PROXY_COMMAND = re.compile(r"ssh\s+(?:.*\s)?-W\s*'?\[?%h\]?:%p'?.*")


@dataclass
class Group:
    """A group while the file is read."""

    hosts: dict[str, int] = field(default_factory=dict)  # and their lines
    variables: dict[str, str] = field(default_factory=dict)
    children: dict[str, int] = field(default_factory=dict)


@dataclass
class Tree:
    """All groups of a file, and the variables of its hosts."""

    groups: dict[str, Group] = field(default_factory=dict)
    host_variables: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group())

    def add_host(self, group: str, pattern: str, line: int) -> list[str]:
        try:
            names = expand_pattern(pattern)
        except ValueError as error:
            self.problems.append((line, str(error)))
            return []
        for name in names:
            self.group(group).hosts.setdefault(name, line)
            self.host_variables.setdefault(name, {})
        return names


def parse_ansible(text: str, group: str | None) -> tuple[SourceHost, ...]:
    """The hosts of `group` and of the groups in it (None: all), in the order of the file. Raises ValueError."""
    tree = Tree()
    if _is_ini(text):
        _read_ini(text, tree)
    else:
        _read_yaml(text, tree)
    if tree.problems:
        raise SourceProblem(tree.problems)
    return _hosts_of(tree, group)


# INI


def _is_ini(text: str) -> bool:
    if text.lstrip().startswith(("{", "---")):
        return False
    has_section = re.search(r"^\s*\[[^\]]+\]", text, re.MULTILINE)
    has_mapping = re.search(r"^[\w.-]+:(\s|$)", text, re.MULTILINE)
    return has_section is not None or has_mapping is None


def _read_ini(text: str, tree: Tree) -> None:
    section, kind = UNGROUPED, "hosts"
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content[0] in "#;":
            continue
        if heading := re.fullmatch(r"\[\s*([^\]:]+?)\s*(?::(\w+))?\s*\]\s*([#;].*)?", content):
            section, kind = heading[1], heading[2] or "hosts"
            tree.group(section)
            if heading[2] not in (None, "children", "vars"):
                tree.problems.append((number, f"[{section}:{kind}]: expected :children or :vars"))
            continue
        if kind == "vars":
            name, _, value = content.partition("=")
            tree.group(section).variables.update(_connection({name.strip(): _unquote(value.strip())}))
            continue
        try:
            words = shlex.split(content, comments=True)
        except ValueError as error:
            tree.problems.append((number, f"{quoted(content)}: {error}"))
            continue
        if kind == "children":
            tree.group(section).children.setdefault(words[0], number)
        else:
            _read_ini_host(section, words, number, tree)


def _read_ini_host(section: str, words: list[str], number: int, tree: Tree) -> None:
    variables = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals:
            tree.problems.append((number, f"{quoted(word)}: expected variables such as ansible_host=10.1.2.3"))
        variables[name] = value
    pattern, port = words[0], None
    if match := re.fullmatch(r"([^:\[\]]+|.*\][^:\[\]]*):([0-9]{1,5})", pattern):
        pattern, port = match[1], match[2]
    for name in tree.add_host(section, pattern, number):
        if port is not None:
            tree.host_variables[name].setdefault("ansible_port", port)
        tree.host_variables[name].update(_connection(variables))


def _unquote(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def expand_pattern(pattern: str) -> list[str]:
    """`www[01:50].example.com`, `db-[a:f]` -> the hosts. Raises ValueError."""
    parts = re.split(r"\[([^\]]*)\]", pattern)
    choices: list[Iterable[str]] = []
    size = 1
    for index, part in enumerate(parts):
        numbers = _expand_range(part) if index % 2 else [part]
        size *= len(numbers)
        if size > MAX_HOSTS:
            raise ValueError(f"{quoted(pattern)}: more than {MAX_HOSTS:,} hosts")
        choices.append(numbers)
    return ["".join(texts) for texts in product(*choices)]


def _expand_range(inside: str) -> list[str]:
    numbers = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})(?::([1-9][0-9]{0,3}))?", inside)
    letters = re.fullmatch(r"([a-z]):([a-z])|([A-Z]):([A-Z])", inside)
    if numbers and int(numbers[1]) <= int(numbers[2]):
        width = len(numbers[1]) if numbers[1].startswith("0") else 1
        return [f"{n:0{width}}" for n in range(int(numbers[1]), int(numbers[2]) + 1, int(numbers[3] or 1))]
    if letters:
        low, high = letters[1] or letters[3], letters[2] or letters[4]
        if low <= high:
            return [chr(code) for code in range(ord(low), ord(high) + 1)]
    raise ValueError(f"[{inside[:40]}] is not a range such as [01:50] or [a:f]")


# YAML and JSON


def _read_yaml(text: str, tree: Tree) -> None:
    try:
        root = compose(text)
    except YamlProblem as error:
        raise SourceProblem([(error.mark.line + 1, error.message)]) from error
    if not isinstance(root, Map):
        raise SourceProblem([(root.mark.line + 1, "expected an Ansible inventory: groups with `hosts`")])
    groups = dict(_items(root))
    tree.group(UNGROUPED)  # `ansible-inventory --list` names it even if it is empty
    if "_meta" in groups:  # ansible-inventory --list
        for name, variables in _items(_get(groups.pop("_meta"), "hostvars")):
            tree.host_variables.setdefault(name, {}).update(_connection(_variables(variables)))
    for name, group in groups.items():
        _read_yaml_group(name, group, tree, 0)


def _read_yaml_group(name: str, node: Node, tree: Tree, depth: int) -> None:
    group = tree.group(name)
    line = node.mark.line + 1
    if isinstance(node, Scalar) and node.null:
        return
    if not isinstance(node, Map) or depth > MAX_DEPTH:
        tree.problems.append((line, f"{name}: expected a group with `hosts`, `children` or `vars`"))
        return
    for key, value in _items(node):
        if key == "vars":
            group.variables.update(_connection(_variables(value)))
        elif key == "hosts":
            for host, mark_line, variables in _yaml_hosts(value):
                for expanded in tree.add_host(name, host, mark_line):
                    tree.host_variables[expanded].update(variables)
        elif key == "children" and isinstance(value, Sequence):
            for child in value.items:
                if isinstance(child, Scalar):
                    group.children.setdefault(child.text, child.mark.line + 1)
        elif key == "children":
            for child_name, child in _items(value):
                group.children.setdefault(child_name, child.mark.line + 1)
                _read_yaml_group(child_name, child, tree, depth + 1)
        else:
            tree.problems.append((value.mark.line + 1, f"{name}.{key}: expected `hosts`, `children` or `vars`"))


def _yaml_hosts(node: Node) -> list[tuple[str, int, dict[str, str]]]:
    if isinstance(node, Sequence):  # in JSON
        return [(item.text, item.mark.line + 1, {}) for item in node.items if isinstance(item, Scalar)]
    return [(name, value.mark.line + 1, _connection(_variables(value))) for name, value in _items(node)]


def _items(node: Node | None) -> list[tuple[str, Node]]:
    """The items of a mapping; none for anything else."""
    if not isinstance(node, Map):
        return []
    return [(key.text, value) for key, value in node.items if isinstance(key, Scalar)]


def _get(node: Node, name: str) -> Node | None:
    return dict(_items(node)).get(name)


def _variables(node: Node) -> dict[str, str]:
    return {name: value.text for name, value in _items(node) if isinstance(value, Scalar) and not value.null}


# hosts


def _connection(variables: Mapping[str, str]) -> dict[str, str]:
    """Only the variables of a connection, under their current names."""
    current = {_NAMES.get(name, name): value for name, value in variables.items()}
    return {name: value for name, value in current.items() if name in _USED}


def _hosts_of(tree: Tree, group: str | None) -> tuple[SourceHost, ...]:
    depths = _depths(tree)
    if group is not None and group not in (*tree.groups, ALL):
        known = [name for name in tree.groups if name != UNGROUPED]
        raise ValueError(f"has no group {quoted(group)}; {nearest(group, known)}")
    selected = set(tree.groups) if group in (None, ALL) else _below(tree, str(group))
    lines: dict[str, int] = {}
    for each in tree.groups.values():
        for host, line in each.hosts.items():
            lines[host] = min(line, lines.get(host, line))
    members = {host for name in selected for host in tree.groups[name].hosts}
    hosts, problems = [], []
    for host, line in sorted(lines.items(), key=lambda item: item[1]):
        if host not in members:
            continue
        own = [name for name in tree.groups if any(host in tree.groups[sub].hosts for sub in _below(tree, name))]
        merged: dict[str, str] = dict(tree.groups[ALL].variables) if ALL in tree.groups else {}
        for name in sorted(own, key=lambda name: (depths.get(name, 0), name)):  # a group below another one wins
            merged.update(tree.groups[name].variables)
        merged.update(tree.host_variables[host])
        try:
            hosts.append(_make_host(host, merged))
        except ValueError as error:
            problems.append((line, f"{host}: {error}"))
    if problems:
        raise SourceProblem(problems)
    if not hosts:
        raise ValueError(f"group {group} has no hosts" if group else "lists no hosts")
    return tuple(hosts)


def _depths(tree: Tree) -> dict[str, int]:
    depths: dict[str, int] = {}

    def visit(name: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"group {name} contains itself, or is nested more than {MAX_DEPTH} levels deep")
        if depth >= depths.get(name, 0):
            depths[name] = depth
            for child in tree.groups[name].children if name in tree.groups else ():
                visit(child, depth + 1)

    for name in tree.groups:
        for child, line in tree.groups[name].children.items():
            if child not in tree.groups:
                raise SourceProblem([(line, f"{name} has the unknown group {quoted(child)}")])
        visit(name, 0 if name == ALL else 1)
    return depths


def _below(tree: Tree, name: str) -> set[str]:
    """The group and all groups in it."""
    below, pending = {name}, [name]
    while pending:
        new = set(tree.groups[pending.pop()].children) - below
        below |= new
        pending += new
    return below


def _make_host(name: str, variables: Mapping[str, str]) -> SourceHost:
    for key, value in variables.items():
        if "{{" in value:
            raise ValueError(f"{key} is a template, which only Ansible can fill in; pass `ansible-inventory --list`")
    if variables.get("ansible_connection") == "local":
        return SourceHost(name=name, address="localhost")
    connection = variables.get("ansible_connection", "ssh")
    if connection not in ("ssh", "smart", "paramiko", "paramiko_ssh"):
        raise ValueError(f"ansible_connection is {quoted(connection)}; ddp-orch needs ssh")
    port = variables.get("ansible_port")
    if port is not None and not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError(f"ansible_port is {quoted(port)}; expected a number")
    arguments = _ssh_arguments(variables.get("ansible_ssh_common_args", ""))
    return SourceHost(
        name=name,
        address=variables.get("ansible_host"),
        user=variables.get("ansible_user") or arguments.user,
        port=int(port) if port else arguments.port,
        identity_file=variables.get("ansible_ssh_private_key_file") or arguments.identity_file,
        proxy_jump=arguments.proxy_jump,
    )


def _ssh_arguments(arguments: str) -> SourceHost:
    """What the arguments of ssh choose: the jump of `-J bastion` or `-o ProxyCommand="ssh -W %h:%p bastion"`."""
    words = shlex.split(arguments)
    for number, word in enumerate(words):
        name, _, command = word.removeprefix("-o").strip().partition("=")
        if name.lower() == "proxycommand":
            if not _PROXY_COMMAND.fullmatch(command):
                raise ValueError(f"{quoted(word)} is not supported; set proxy_jump in an inventory")
            jump = parse_ssh_line(re.sub(r"-W\s*'?\[?%h\]?:%p'?", "", command))
            words[number] = word[: word.index("=")].replace(name, "ProxyJump") + "=" + _as_jump(jump)
    return parse_ssh_line(shlex.join(["ssh", *words, "host"]))


def _as_jump(host: SourceHost) -> str:
    user = f"{host.user}@" if host.user else ""
    port = f":{host.port}" if host.port else ""
    return f"{user}{host.name}{port}"
