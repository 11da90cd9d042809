"""What systemd-logind and PAM do with processes of a login, read from the files of a host."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from orchestrator.node.host import login_session, processes

SESSION = "0::/user.slice/user-1000.slice/session-7.scope\n"
SESSION_V1 = "1:name=systemd:/user.slice/user-1000.slice/session-c2.scope\n4:memory:/\n"
SERVICE = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-u7.scope\n"
USER = getpass.getuser()


def host(root: Path, logind: str = "", cgroup: str = SESSION, systemd: bool = True, **drop_ins: str) -> str:
    """`drop_ins`: by folder and name, `etc__10` for /etc/systemd/logind.conf.d/10.conf."""
    files = {"etc/systemd/logind.conf": logind, "proc/self/cgroup": cgroup}
    for name, text in drop_ins.items():
        folder, _, number = name.partition("__")
        files[f"{folder.replace('_', '/')}/systemd/logind.conf.d/{number}.conf"] = text
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    if systemd:
        (root / "run/systemd/system").mkdir(parents=True)
    return str(root)


YES = "[Login]\nKillUserProcesses=yes\n"


@pytest.mark.parametrize(
    ("logind", "kills"),
    [
        (YES, True),
        ("[Login]\nKillUserProcesses = true\n", True),
        ("[Login]\n#KillUserProcesses=no\n", False),
        ("[Login]\n#KillUserProcesses=yes\n", True),  # the default that it was built with
        ("", False),
        (YES + f"KillExcludeUsers=root {USER}\n", False),
        (YES + f"KillOnlyUsers={USER}\nKillExcludeUsers=\n", True),
        (YES + "KillOnlyUsers=bob\nKillExcludeUsers=\n", False),
    ],
)
def test_settings_of_logind(tmp_path: Path, logind: str, kills: bool) -> None:
    excluded = "" if "KillExcludeUsers" in logind else "KillExcludeUsers=\n"  # the tests may run as root
    assert login_session.kills_processes(host(tmp_path, logind + excluded)) is kills


def test_drop_ins_win_by_their_names_wherever_they_are(tmp_path: Path) -> None:
    no = "[Login]\nKillUserProcesses=no\n"
    exclude = "KillExcludeUsers=\n"
    assert login_session.kills_processes(host(tmp_path / "a", no + exclude, usr_lib__20=YES, etc__10=no))
    assert not login_session.kills_processes(host(tmp_path / "b", YES + exclude, usr_lib__20=YES, etc__20=no))
    assert not login_session.kills_processes(host(tmp_path / "c", no + exclude, run__10=YES, etc__99=no))


@pytest.mark.parametrize(
    ("cgroup", "inside"), [(SESSION, True), (SESSION_V1, True), (SERVICE, False), ("0::/\n", False)]
)
def test_only_what_belongs_to_a_login_ends_with_it(tmp_path: Path, cgroup: str, inside: bool) -> None:
    assert login_session.kills_processes(host(tmp_path, YES + "KillExcludeUsers=\n", cgroup)) is inside


def test_a_host_without_systemd_ends_nothing(tmp_path: Path) -> None:
    assert not login_session.kills_processes(host(tmp_path, YES + "KillExcludeUsers=\n", systemd=False))
    assert login_session.look(str(tmp_path / "none")) == dict.fromkeys(
        ("kills", "linger", "scope", "slurm_adopts"), False
    )


def test_what_busctl_prints() -> None:
    assert [login_session.parse_property(text) for text in ("b true", "b false", "as 0", 'as 2 "root" "ann"')] == [
        "yes",
        "no",
        "",
        "root ann",
    ]


def test_slurm_in_pam_with_its_included_files(tmp_path: Path) -> None:
    pam = tmp_path / "etc/pam.d"
    pam.mkdir(parents=True)
    (pam / "sshd").write_text(
        "#account required pam_slurm_adopt.so\n@include common-account\nauth include password-auth\n"
    )
    (pam / "common-account").write_text("account required pam_unix.so\n@include sshd\n")
    assert not login_session.slurm_adopts(str(tmp_path))
    (pam / "password-auth").write_text("account  required  pam_slurm_adopt.so\n")
    assert login_session.slurm_adopts(str(tmp_path))


def test_linger(tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/systemd/linger"
    folder.mkdir(parents=True)
    assert login_session.look(str(tmp_path))["linger"] is False
    (folder / processes.user_name(os.geteuid())).touch()
    assert login_session.look(str(tmp_path))["linger"] is True


def test_a_command_that_outlives_the_login_is_run_by_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd is not pid 1 of machines that run tests: the program here is a stand-in, but it is executed."""
    program = tmp_path / "systemd-run"
    program.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(login_session, "kills_processes", lambda: True)
    assert login_session.outlive(["true"], "x")[:3] == ["systemd-run", "--user", "--scope"]
    program.write_text("#!/bin/sh\nexit 1\n")
    assert login_session.outlive(["true"], "x") == ["true"]
    monkeypatch.setattr(login_session, "kills_processes", lambda: False)
    assert login_session.outlive(["true"], "x") == ["true"]


@pytest.mark.parametrize(
    ("path", "text", "mode", "down"),
    [
        ("run/openrc/softlevel", "default\n", 0o644, False),
        ("run/openrc/softlevel", "", 0o644, False),  # as Dockerfiles leave it
        ("run/openrc/softlevel", "shutdown\n", 0o644, True),
        ("run/openrc/softlevel", "reboot", 0o644, True),
        ("run/runit/stopit", "", 0o000, False),
        ("run/runit/stopit", "", 0o100, True),
        ("run/runit.stopit", "", 0o100, True),  # Debian
        ("sbin/runlevel", "#!/bin/sh\necho N 5\n", 0o755, False),
        ("sbin/runlevel", "#!/bin/sh\necho 0 2\n", 0o755, False),
        ("sbin/runlevel", "#!/bin/sh\necho unknown\n", 0o755, False),
        ("sbin/runlevel", "#!/bin/sh\necho 2 0\n", 0o755, True),
        ("sbin/runlevel", "#!/bin/sh\necho 5 6\n", 0o755, True),
        ("none", "", 0o644, False),
    ],
)
def test_a_shutdown_is_recognised_without_systemd(tmp_path: Path, path: str, text: str, mode: int, down: bool) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    (tmp_path / path).chmod(mode)
    assert login_session.host_shuts_down(str(tmp_path)) is down
