"""known_hosts as OpenSSH means it; its own tools write the files where they can."""

from __future__ import annotations

import base64
import re
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ssh.known_hosts import KnownHosts, _is_like, append, fingerprint, lookup_names


def make_key(seed: str, kind: str = "ssh-ed25519") -> bytes:
    name, body = kind.encode(), seed.encode().ljust(32, b"-")
    return len(name).to_bytes(4, "big") + name + len(body).to_bytes(4, "big") + body


KEY, OTHER, RSA = make_key("key"), make_key("other"), make_key("rsa", "ssh-rsa")


def line(hosts: str, key: bytes = KEY, marker: str = "") -> str:
    kind = key[4 : 4 + key[3]].decode()
    return f"{marker} {hosts} {kind} {base64.b64encode(key).decode()} a comment".strip()


def read(tmp_path: Path, *lines: str) -> KnownHosts:
    path = tmp_path / "known_hosts"
    path.write_text("\n".join(lines) + "\n")
    return KnownHosts.read([path])


def status(known: KnownHosts, host: str, key: bytes = KEY, port: int = 22, alias: str | None = None) -> str:
    return known.verify(lookup_names(host, port, alias), key).status


@pytest.mark.parametrize(
    ("hosts", "host", "port", "expected"),
    [
        ("gpu1", "gpu1", 22, "known"),
        ("gpu1", "GPU1", 22, "known"),
        ("GPU1", "gpu1", 22, "known"),
        ("gpu1", "gpu2", 22, "unknown"),
        ("gpu1,10.0.0.1", "10.0.0.1", 22, "known"),
        ("gpu*", "gpu17", 22, "known"),
        ("gpu?", "gpu17", 22, "unknown"),
        ("*,!gpu2", "gpu1", 22, "known"),
        ("*,!gpu2", "gpu2", 22, "unknown"),
        ("!gpu1", "gpu1", 22, "unknown"),
        ("g.u1", "gpu1", 22, "unknown"),
        ("[gpu1]:2222", "gpu1", 2222, "known"),
        ("[gpu1]:2222", "gpu1", 22, "unknown"),
        ("[gpu*]:2222", "gpu1", 2222, "known"),
        ("gpu1", "gpu1", 2222, "known"),  # as OpenSSH: a key known without its port is good for every port
        ("[::1]:2222", "::1", 2222, "known"),
    ],
)
def test_names_match_as_in_openssh(tmp_path: Path, hosts: str, host: str, port: int, expected: str) -> None:
    assert status(read(tmp_path, line(hosts)), host, port=port) == expected


def test_another_key_on_file_means_that_it_has_changed(tmp_path: Path) -> None:
    known = read(tmp_path, "# comment", "", line("gpu1", OTHER))
    verdict = known.verify(("gpu1",), KEY)
    assert verdict.status == "changed"
    assert verdict.entry and verdict.entry.where == f"{tmp_path}/known_hosts:3"


def test_a_key_of_another_type_is_a_change_too_or_a_listener_would_just_show_one(tmp_path: Path) -> None:
    assert status(read(tmp_path, line("gpu1", RSA)), "gpu1", KEY) == "changed"


def test_the_key_on_file_of_the_same_type_is_the_one_that_changed(tmp_path: Path) -> None:
    verdict = read(tmp_path, line("gpu1", RSA), line("gpu1", OTHER)).verify(("gpu1",), KEY)
    assert verdict.entry and verdict.entry.line == 2


def test_another_key_without_the_port_says_nothing_about_the_port(tmp_path: Path) -> None:
    assert status(read(tmp_path, line("gpu1", OTHER)), "gpu1", port=2222) == "unknown"


def test_any_of_several_keys_of_a_host_will_do(tmp_path: Path) -> None:
    known = read(tmp_path, line("gpu1", OTHER), line("gpu1", KEY))
    assert status(known, "gpu1", KEY) == status(known, "gpu1", OTHER) == "known"


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_a_revoked_key_is_refused_wherever_else_it_stands(tmp_path: Path, order: slice) -> None:
    lines = [line("gpu1"), line("*", KEY, "@revoked")]
    assert status(read(tmp_path, *lines[order]), "gpu1") == "revoked"


def test_a_revoked_key_does_not_make_the_new_one_a_change(tmp_path: Path) -> None:
    assert status(read(tmp_path, line("*", OTHER, "@revoked")), "gpu1") == "unknown"


def test_an_authority_is_told_from_an_unknown_host(tmp_path: Path) -> None:
    known = read(tmp_path, line("*.cluster", OTHER, "@cert-authority"))
    assert status(known, "a.cluster") == "authority"
    assert status(known, "b") == "unknown"


def test_the_authority_s_own_key_is_no_host_key(tmp_path: Path) -> None:
    assert status(read(tmp_path, line("gpu1", KEY, "@cert-authority")), "gpu1", KEY) == "authority"


def test_an_alias_replaces_name_and_port(tmp_path: Path) -> None:
    known = read(tmp_path, line("pool"))
    assert status(known, "10.0.0.1", port=2222, alias="pool") == "known"


def test_types_on_file_are_those_of_the_host(tmp_path: Path) -> None:
    known = read(tmp_path, line("gpu1", RSA), line("gpu2"), line("gpu1", OTHER, "@revoked"))
    assert known.key_types(("gpu1",)) == {"ssh-rsa"}
    assert known.key_types(("gpu3",)) == frozenset()


@pytest.mark.parametrize(
    "broken",
    [
        "gpu1",
        "gpu1 ssh-ed25519",
        "gpu1 ssh-ed25519 !!!",
        "gpu1 ssh-ed25519 AAAA",
        "@unheard-of gpu1 ssh-ed25519 AAAA",
        "|1|broken ssh-ed25519 AAAA",
        "|2|YQ==|YQ== " + line("x").split(None, 1)[1],
        line("gpu1").replace("ssh-ed25519", "ssh-rsa"),
        "\x00\x01",
    ],
)
def test_a_broken_line_is_noted_and_hides_no_other(tmp_path: Path, broken: str) -> None:
    known = read(tmp_path, broken, line("gpu1"))
    assert status(known, "gpu1") == "known"
    assert len(known.notes) == 1
    assert known.notes[0].startswith(f"{tmp_path}/known_hosts:1: left out: ")


def test_windows_line_ends_and_bytes_that_are_no_text_are_read(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_bytes(b"# caf\xe9\r\n" + line("gpu1").encode() + b" caf\xe9\r\n")
    known = KnownHosts.read([path])
    assert status(known, "gpu1") == "known"
    assert known.notes == ()


def test_several_files_count_as_one_and_missing_ones_as_empty(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(line("gpu1") + "\n")
    (tmp_path / "b").write_text(line("gpu1", KEY, "@revoked") + "\n")
    assert status(KnownHosts.read([tmp_path / "a", tmp_path / "none"]), "gpu1") == "known"
    assert status(KnownHosts.read([tmp_path / "a", tmp_path / "b"]), "gpu1") == "revoked"


def test_names_hashed_by_ssh_keygen_are_found(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    kind, encoded = (tmp_path / "key.pub").read_text().split()[:2]
    path.write_text(f"gpu1 {kind} {encoded}\n[gpu2]:2222 {kind} {encoded}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(path)], check=True, capture_output=True)
    assert [line[:3] for line in path.read_text().splitlines()] == ["|1|", "|1|"]
    known, key = KnownHosts.read([path]), base64.b64decode(encoded)
    assert status(known, "gpu1", key) == status(known, "GPU2", key, 2222) == "known"
    assert status(known, "gpu3", key) == "unknown"


def test_the_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(tmp_path / "key")], check=True)
    shown = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "key.pub")], check=True, capture_output=True, text=True)
    assert fingerprint(base64.b64decode((tmp_path / "key.pub").read_text().split()[1])) == shown.stdout.split()[1]


@pytest.mark.parametrize("hashed", [False, True])
def test_an_added_key_is_found_by_us_and_by_ssh_keygen(tmp_path: Path, hashed: bool) -> None:
    path = tmp_path / "new" / "known_hosts"
    entry = append(path, "[gpu1]:2222", KEY, hashed=hashed)
    assert status(KnownHosts.read([path]), "gpu1", port=2222) == "known"
    assert subprocess.run(["ssh-keygen", "-F", "[gpu1]:2222", "-f", str(path)], capture_output=True).returncode == 0
    assert ("gpu1" in path.read_text()) is not hashed
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    known = KnownHosts()
    known.add(entry)
    assert status(known, "gpu1", port=2222) == "known"


def test_adding_keeps_what_is_there_even_without_a_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text("# mine\n" + line("gpu1"))
    assert append(path, "gpu2", OTHER, hashed=False).line == 3
    assert path.read_text().startswith("# mine\n" + line("gpu1") + "\n")
    known = KnownHosts.read([path])
    assert status(known, "gpu1") == status(known, "gpu2", OTHER) == "known"


def test_many_threads_add_without_losing_one(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line("gpu0"))  # no line end
    threads = [
        threading.Thread(target=append, args=(path, f"gpu{n}", KEY), kwargs={"hashed": False}) for n in range(1, 40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = KnownHosts.read([path])
    assert known.notes == ()
    assert all(status(known, f"gpu{n}") == "known" for n in range(40))


@given(st.binary(max_size=300))
def test_no_file_makes_the_reader_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "known_hosts"
    path.write_bytes(data + b"\n" + line("gpu1").encode())
    assert status(KnownHosts.read([path]), "gpu1") in ("known", "revoked")


@given(st.text("ab.", max_size=8), st.text("ab.*?", max_size=8))
def test_a_pattern_means_what_its_regular_expression_would(name: str, pattern: str) -> None:
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    assert _is_like(name, pattern) == bool(re.fullmatch(expression, name))


def test_a_pattern_of_many_stars_is_judged_at_once() -> None:
    assert not _is_like("a" * 200 + "b", "*a" * 40)
    assert _is_like("a" * 200, "*a" * 40)
