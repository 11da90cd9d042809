"""What `ssh HOST` would do, asked of the real ssh; and of paramiko's reader where there is none."""

from __future__ import annotations

import getpass
import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.inventory.model import Host
from orchestrator.ssh import config as ssh_config
from orchestrator.ssh.config import Target, resolve
from orchestrator.ssh.pipe import ConnectFailure

PLAIN = Host(
    name="gpu1",
    address="gpu1",
    user=None,
    port=None,
    identity_file=None,
    proxy_jump=None,
    via="paramiko",
    cluster_address=None,
    interface="auto",
    gpus="auto",
    nproc_per_node="auto",
    python="python3",
    setup=(),
    workdir=None,
    state_dir=None,
    env={},
    container="none",
    spare=False,
)


@pytest.fixture(params=["ssh", "paramiko"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "paramiko":
        monkeypatch.setattr(ssh_config.shutil, "which", lambda name: None)
    return str(request.param)


def resolved(tmp_path: Path, text: str, host: Host = PLAIN) -> Target:
    config = tmp_path / "config"
    config.write_text(text)
    return resolve(host, config)


def refused(tmp_path: Path, text: str, host: Host = PLAIN) -> ConnectFailure:
    with pytest.raises(ConnectFailure) as caught:
        resolved(tmp_path, text, host)
    return caught.value


@pytest.mark.usefixtures("reader")
def test_without_a_word_in_ssh_config_ssh_s_own_defaults_hold(tmp_path: Path) -> None:
    target = resolved(tmp_path, "")
    assert (target.hostname, target.port, target.user) == ("gpu1", 22, getpass.getuser())
    assert target.jump is target.proxy_command is target.identity_file is None
    assert Path("~/.ssh/id_ed25519").expanduser() in target.identity_files
    # ssh itself knows the home from the user database, whatever HOME says
    homes = Path.home(), Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert target.user_known_hosts[0] in [home / ".ssh" / "known_hosts" for home in homes]
    assert target.global_known_hosts[0] == Path("/etc/ssh/ssh_known_hosts")


@pytest.mark.usefixtures("reader")
def test_ssh_config_is_honoured(tmp_path: Path) -> None:
    target = resolved(
        tmp_path,
        """
        Host gpu*
            HostName 10.1.2.3
            User ann
            Port 2222
            IdentityFile ~/keys/%r@%h
            IdentityFile /keys/other
            IdentitiesOnly yes
            UserKnownHostsFile /kh/a /kh/b
            HostKeyAlias pool
            HashKnownHosts yes
            IdentityAgent /run/agent
        """,
    )
    assert (target.hostname, target.port, target.user) == ("10.1.2.3", 2222, "ann")
    assert target.identity_files == (Path("~/keys/ann@10.1.2.3").expanduser(), Path("/keys/other"))
    assert target.identities_only and target.hash_known_hosts
    assert target.user_known_hosts == (Path("/kh/a"), Path("/kh/b"))
    assert target.known_as == ("pool",)
    assert target.agent_socket == Path("/run/agent")


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("written", ['"/k h/a b" "~/k h/d" /kh/c', "/k\\ h/a\\ b ~/k\\ h/d /kh/c"])
def test_a_path_of_known_hosts_may_have_spaces(tmp_path: Path, written: str) -> None:
    target = resolved(tmp_path, f"UserKnownHostsFile {written}\nGlobalKnownHostsFile none\n")
    homes = Path.home(), Path(pwd.getpwuid(os.getuid()).pw_dir)
    first, second, third = target.user_known_hosts
    assert (first, third) == (Path("/k h/a b"), Path("/kh/c"))
    assert second in [home / "k h" / "d" for home in homes]
    assert target.global_known_hosts == ()


@pytest.mark.usefixtures("reader")
def test_paths_of_known_hosts_may_be_relative(tmp_path: Path) -> None:
    assert resolved(tmp_path, "UserKnownHostsFile a b\n").user_known_hosts == (Path("a"), Path("b"))


@pytest.mark.usefixtures("reader")
def test_the_inventory_wins(tmp_path: Path) -> None:
    host = replace(PLAIN, user="bob", port=99, identity_file="/keys/mine", proxy_jump="me@there:77")
    text = "Host gpu1\n User ann\n Port 2222\n IdentityFile /keys/theirs\n ProxyJump other\n"
    target = resolved(tmp_path, text, host)
    assert (target.user, target.port, target.identity_file) == ("bob", 99, Path("/keys/mine"))
    assert target.identity_files == (Path("/keys/theirs"),)
    assert target.jump and (target.jump.hostname, target.jump.user, target.jump.port) == ("there", "me", 77)


@pytest.mark.usefixtures("reader")
def test_jump_hosts_have_their_own_configuration_and_may_be_several(tmp_path: Path) -> None:
    text = """
        Host gpu1
            ProxyJump outer,ann@inner:2200
        Host inner
            HostName 10.0.0.2
            User ignored
        Host outer
            HostName 10.0.0.1
            User eve
        """
    target = resolved(tmp_path, text)
    inner = target.jump
    assert inner and (inner.hostname, inner.user, inner.port) == ("10.0.0.2", "ann", 2200)
    assert inner.jump and (inner.jump.hostname, inner.jump.user, inner.jump.jump) == ("10.0.0.1", "eve", None)


@pytest.mark.usefixtures("reader")
def test_a_jump_of_ipv6_or_as_a_uri_is_understood(tmp_path: Path) -> None:
    jump = resolved(tmp_path, "", replace(PLAIN, proxy_jump="ann@[::1]:2200")).jump
    assert jump and (jump.hostname, jump.user, jump.port) == ("::1", "ann", 2200)


@pytest.mark.usefixtures("reader")
def test_equal_jump_hosts_are_equal_targets_so_that_they_share_a_connection(tmp_path: Path) -> None:
    first = resolved(tmp_path, "Host *\n ProxyJump none\n", replace(PLAIN, proxy_jump="bastion"))
    second = resolved(tmp_path, "Host *\n ProxyJump none\n", replace(PLAIN, address="gpu2", proxy_jump="bastion"))
    assert first.jump == second.jump
    assert hash(first.jump) == hash(second.jump)


@pytest.mark.usefixtures("reader")
def test_a_loop_of_jumps_is_refused(tmp_path: Path) -> None:
    failure = refused(tmp_path, "Host a\n ProxyJump b\nHost b\n ProxyJump a\n", replace(PLAIN, address="a"))
    assert "loop" in failure.reason


def test_match_and_include_are_understood(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host gpu1\n User ann\n")
    target = resolved(tmp_path, f"Include {tmp_path}/more\nMatch host gpu1 exec true\n Port 2222\n")
    assert (target.user, target.port) == ("ann", 2222)


def test_include_is_refused_where_there_is_no_ssh_to_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_config.shutil, "which", lambda name: None)
    failure = refused(tmp_path, "Include more\n")
    assert "Include more" in failure.reason and "install" in failure.fix


def test_proxy_command_gets_its_tokens(tmp_path: Path) -> None:
    target = resolved(tmp_path, "Host gpu1\n HostName 10.1.2.3\n ProxyCommand nc -X %% %h %p\n")
    assert target.proxy_command == "nc -X % 10.1.2.3 22"


def test_an_unknown_token_is_refused(tmp_path: Path) -> None:
    assert "%C" in refused(tmp_path, "ProxyCommand connect %C\n").reason


@pytest.mark.parametrize(
    "setting",
    [
        "KnownHostsCommand /bin/keys %H",
        "RevokedHostKeys /etc/ssh/revoked",
        "ProxyUseFdpass yes",
        "PubkeyAuthentication no",
        "CertificateFile /keys/cert",
    ],
)
def test_what_would_change_whom_we_trust_and_is_not_done_is_refused(tmp_path: Path, setting: str) -> None:
    assert setting.split()[0].lower() in refused(tmp_path, setting + "\n").reason.lower()


def test_a_certificate_beside_its_key_is_fine(tmp_path: Path) -> None:
    assert resolved(tmp_path, "IdentityFile /keys/a\nCertificateFile /keys/a-cert.pub\n").identity_files


def test_pkcs11_is_remarked_on_as_other_keys_may_do(tmp_path: Path) -> None:
    assert "ssh-add -s /lib/token.so" in resolved(tmp_path, "PKCS11Provider /lib/token.so\n").remarks[0]


def test_algorithms_that_ssh_config_leaves_out_are_left_out(tmp_path: Path) -> None:
    target = resolved(tmp_path, "Ciphers aes256-ctr\n")
    assert dict(target.algorithms)["ciphers"] == {"aes256-ctr"}


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    "address", ["-oProxyCommand=touch pwned", "a;touch pwned", "a b", "", "$(touch pwned)", "a/../b"]
)
def test_no_name_is_taken_for_an_option_or_run_by_a_shell(tmp_path: Path, address: str) -> None:
    failure = refused(tmp_path, "ProxyCommand nc %h\n", replace(PLAIN, address=address))
    assert "not a host name" in failure.reason


def test_what_ssh_says_against_its_configuration_is_passed_on(tmp_path: Path) -> None:
    failure = refused(tmp_path, "NoSuchKeyword yes\n")
    assert (failure.host, failure.phase) == ("gpu1", "ssh config")
    assert "line 1" in failure.reason and "nosuchkeyword" in failure.reason


def test_a_match_exec_that_hangs_ends_at_the_deadline(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text('Match exec "sleep 30"\n User ann\n')
    with pytest.raises(ConnectFailure, match="in time"):
        resolve(PLAIN, config, timeout=0.3)


def test_advice_says_how_to_get_to_a_host_by_hand() -> None:
    far = replace(PLAIN, address="10.0.0.7", user="ann", port=2222, identity_file="~/.ssh/lab", proxy_jump="gate")
    there = "ssh -l ann -p 2222 -i '~/.ssh/lab' -J gate 10.0.0.7"  # ssh reads the ~ by itself
    said = "try ssh gpu1 kill 5, `ssh gpu1`; ssh gpu10, ssh gpu1.lab and ssh gpu1-b are others"
    expected = f"try {there} kill 5, `{there}`; ssh gpu10, ssh gpu1.lab and ssh gpu1-b are others"
    assert ssh_config.by_hand(said, [far]) == expected
    chained = [replace(PLAIN, address="gpu2"), replace(PLAIN, name="gpu2", address="10.0.0.2")]
    assert ssh_config.by_hand("ssh gpu1 kill 5", chained) == "ssh gpu2 kill 5"
    assert ssh_config.by_hand(said, [PLAIN, replace(PLAIN, name="gpu10", address="localhost")]) == said
    entered = replace(PLAIN, address="localhost", via="docker exec -i {host}")
    assert ssh_config.by_hand("ssh gpu1 kill 5", [entered]) == "docker exec -i gpu1 kill 5"
