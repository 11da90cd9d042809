"""The lab itself: does each of its promises hold? What is proved here, other tests may lean on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import Host, Lab, memory, wait_until
from lab.fixtures import assert_nothing_left

pytest_plugins = ["pytester"]
TESTS = Path(__file__).resolve().parents[1]


def ssh(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    return lab.run(["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=2", *arguments])


def listing(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The names that were printed. The checkout, which hosts see where it is, may lie below /tmp itself."""
    return [name for name in result.stdout.split() if name not in Path(__file__).parts]


def seconds(function: Callable[[], object]) -> float:
    start = time.monotonic()
    function()
    return time.monotonic() - start


def boot_id(host: Host) -> str:
    return host.sh("cat /proc/sys/kernel/random/boot_id").stdout


# --- what a host is -------------------------------------------------------------------------------------------------


def test_hosts_have_names_networks_and_process_tables_of_their_own(lab3: Lab) -> None:
    names = [host.sh("hostname").stdout.strip() for host in lab3.hosts]
    assert names == ["node-0", "node-1", "node-2"]
    assert len({boot_id(host) for host in lab3.hosts}) == 3
    assert len({host.sh("cat /etc/machine-id").stdout for host in lab3.hosts}) == 3
    for host in lab3.hosts:
        addresses = host.sh("ip -4 -brief address").stdout
        assert {f"{host.address}/16", f"{host.cluster_address}/16", "172.17.0.1/16"} <= set(addresses.split())
        assert len(host.processes()) < 10
        assert host.sh("ls /home").stdout.split() == ["ann", "bob"]
        assert listing(host.sh("ls -A /tmp /var/tmp")) == ["/tmp:", "/var/tmp:"]


def test_ids_of_the_machine_can_be_kept_as_containers_do(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2, own_ids=False)
    assert {boot_id(host) for host in lab.hosts} == {Path("/proc/sys/kernel/random/boot_id").read_text()}


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish", "csh"])
def test_ssh_logs_in_as_an_ordinary_user_with_the_chosen_shell(make_lab: Callable[..., Lab], shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    lab = make_lab(1, shells=[shell])
    result = ssh(lab, "node-0", "whoami; echo $SHELL; python3 --version; hostname")
    user, path, python, name = result.stdout.splitlines()
    assert (user, Path(path).name, name) == ("ann", shell, "node-0")
    assert tuple(map(int, python.split()[1].split("."))) >= (3, 8)
    assert ssh(lab, "-tt", "node-0", "tty").stdout.startswith("/dev/pts/")


def test_sshd_listens_where_it_is_told_and_takes_options(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1, ports=(22, 2222), sshd_options={"MaxSessions": 0})
    for port in ("22", "2222"):
        result = ssh(lab, "-v", "-p", port, "node-0", "true")
        assert "Authenticated to node-0" in result.stderr  # the host key on that port was known, too
        assert result.returncode == 255  # no session allowed


def test_the_python_of_the_tests_runs_on_hosts_for_everyone(lab2: Lab) -> None:
    for user in ("ann", "bob"):
        result = lab2.hosts[1].sh(f"{lab2.hosts[1].python} -c 'import sys; print(sys.prefix)'", user)
        assert result.stdout.strip() == sys.prefix, result.stderr


def test_nothing_of_the_machine_is_writable_on_a_host_even_for_root(lab2: Lab) -> None:
    host = lab2.hosts[0]
    for folder in (TESTS, TESTS.parent, Path("/"), Path("/etc"), Path("/usr"), Path(sys.base_prefix)):
        result = host.sh(f"touch {folder}/from-a-host", "root")
        assert result.returncode != 0 and "Read-only" in result.stderr, folder


def test_homes_are_private_or_shared_as_wanted(lab2: Lab, make_lab: Callable[..., Lab]) -> None:
    for lab, elsewhere in ((lab2, ""), (make_lab(2, shared_home=True), "hello\n")):
        lab.hosts[0].sh("echo hello > ~/greeting", check=True)
        assert (lab.hosts[0].home / "greeting").read_text() == "hello\n"
        assert lab.hosts[1].sh("cat ~/greeting").stdout == elsewhere


def test_a_small_disk_fills_up(lab2: Lab) -> None:
    host = lab2.hosts[0]
    host.disk("/home/ann/small", "1m")
    result = host.sh("head -c 2000000 /dev/zero > ~/small/file; stat -c %s ~/small/file")
    assert "No space left" in result.stderr
    assert int(result.stdout) == 1 << 20


def test_the_controller_reaches_nothing_outside_the_lab(lab2: Lab) -> None:
    interfaces = lab2.run(["ls", "/sys/class/net"]).stdout.split()
    assert sorted(interfaces) == ["cluster", "cluster0", "cluster1", "lo", "ssh", "ssh0", "ssh1"]
    assert "unreachable" in lab2.run(["ip", "route", "get", "1.1.1.1"]).stderr
    assert "unreachable" in lab2.run(["ip", "route", "get", lab2.hosts[0].cluster_address]).stderr


def test_the_inventory_names_every_host(lab2: Lab) -> None:
    text = lab2.run(["cat", lab2.inventory(run={"nnodes": 2})]).stdout
    for host in lab2.hosts:
        assert host.name in text and host.address in text
    assert "nnodes: 2" in text


# --- what can happen to it ------------------------------------------------------------------------------------------


def test_crontabs_survive_a_reboot_and_cron_runs_their_lines(lab2: Lab) -> None:
    host = lab2.hosts[0]
    host.sh("crontab -", input="@reboot touch ~/booted\n", check=True)
    assert lab2.hosts[1].sh("crontab -l").stdout == ""
    host.crash()
    host.boot()
    host.popen(["cron", "-f"], "root")
    wait_until((host.home / "booted").exists, 30, "cron has run the line")


def test_a_crashed_host_comes_back_with_a_new_boot_id_and_its_disk(lab2: Lab) -> None:
    host, before = lab2.hosts[0], boot_id(lab2.hosts[0])
    sleeper = host.popen(["sleep", "1000"])
    host.sh("echo kept > ~/file; echo lost > /tmp/file", check=True)
    host.crash()
    assert sleeper.poll() == -signal.SIGKILL
    assert ssh(lab2, "node-0", "true").returncode == 255
    host.boot()
    result = ssh(lab2, "node-0", "cat file; ls /tmp")
    assert (listing(result), result.stderr) == (["kept"], "")
    assert boot_id(host) != before


def test_a_cut_host_is_silent_until_it_is_healed(lab2: Lab) -> None:
    lab2.hosts[0].cut()
    assert "timed out" in ssh(lab2, "node-0", "true").stderr
    assert ssh(lab2, "node-1", "true").returncode == 0
    lab2.hosts[0].heal()
    assert ssh(lab2, "node-0", "true").returncode == 0


def test_the_networks_are_cut_one_by_one(lab2: Lab) -> None:
    near, far = lab2.hosts
    reach = f"timeout 2 bash -c ': < /dev/tcp/{far.cluster_address}/22'"
    far.cut("cluster")
    assert near.sh(reach).returncode == 124
    assert ssh(lab2, far.name, "true").returncode == 0
    far.heal("cluster")
    far.cut("ssh")
    assert near.sh(reach).returncode == 0
    assert ssh(lab2, far.name, "true").returncode == 255


def test_the_path_between_two_hosts_is_cut_and_no_other(lab3: Lab) -> None:
    first, second, third = lab3.hosts

    def reach(target: str) -> str:
        return f"timeout 2 bash -c ': < /dev/tcp/{target}/22'"

    lab3.cut_path(first, second)
    for near, far, status in ((first, second, 124), (second, first, 124), (first, third, 0), (third, second, 0)):
        assert near.sh(reach(far.address)).returncode == near.sh(reach(far.cluster_address)).returncode == status
    assert ssh(lab3, second.name, "true").returncode == 0
    lab3.heal_paths()
    assert first.sh(reach(second.address)).returncode == 0


def test_loss_takes_that_share_of_the_packets_each_way(lab2: Lab) -> None:
    near, far = lab2.hosts
    assert received(near, far, 500) == 500
    far.loss(30, "cluster")
    assert 300 <= received(near, far, 500) <= 400  # 350, and five standard deviations
    assert 300 <= received(far, near, 500) <= 400


def test_rate_limits_each_direction(lab2: Lab) -> None:
    host = lab2.hosts[0]

    def upload() -> None:
        lab2.run(["ssh", host.name, "cat > /dev/null"], input="x" * 2_500_000)

    def download() -> None:
        ssh(lab2, host.name, "head -c 2500000 /dev/zero")

    host.rate("10mbit", "ssh")  # 2.5 MB = 20 Mbit = 2 s
    limited = seconds(upload), seconds(download)
    assert min(limited) > 1.6
    host.heal()
    assert seconds(upload) < limited[0]
    assert seconds(download) < limited[1]


def test_delay_is_added_to_each_direction(lab2: Lab) -> None:
    near, far = lab2.hosts
    assert round_trip(near, far) < 0.05
    far.delay(60, "cluster")
    assert 0.12 <= round_trip(near, far) < 0.2
    assert round_trip(far, near) >= 0.12
    far.heal()
    assert round_trip(near, far) < 0.05


def test_a_delayed_link_carries_bulk_data_unharmed_and_can_be_cut(lab2: Lab) -> None:
    host = lab2.hosts[0]
    host.delay(10)
    result = lab2.run(["ssh", host.name, "sha256sum"], input="lab\n" * 2_000_000)
    assert result.stdout.split()[0] == "bc4f6d50998db3bfcc7272b53bd45dfb96b9c47447a8ef62243626cf47a1b885"
    host.cut()
    assert "timed out" in ssh(lab2, host.name, "true").stderr


def test_slow_dns_stalls_unknown_names_and_no_others(lab2: Lab) -> None:
    host = lab2.hosts[0]
    unknown = "RES_OPTIONS='timeout:1 attempts:1' getent ahosts no-such-host.example"
    assert seconds(lambda: host.sh(unknown)) < 0.5
    host.slow_dns()
    assert seconds(lambda: host.sh(unknown)) >= 1
    assert seconds(lambda: host.sh("getent ahosts node-1", check=True)) < 0.5


def test_a_process_that_takes_too_much_memory_is_killed_alone(lab2: Lab) -> None:
    host = lab2.hosts[0]
    take = """python3 -c 'len(b"x" * 200_000_000)'; echo exit $?"""
    host.limit_memory("60m")
    assert ssh(lab2, host.name, take).stdout == "exit 137\n"
    assert ssh(lab2, host.name, take).stdout == "exit 137\n"
    host.reset()
    assert ssh(lab2, host.name, take).stdout == "exit 0\n"


def test_sshd_can_stop_and_start_while_sessions_go_on(lab2: Lab) -> None:
    host = lab2.hosts[0]
    session = lab2.popen(["ssh", host.name, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert session.stdin and session.stdout
    session.stdin.write("there\n")
    session.stdin.flush()
    assert session.stdout.readline() == "there\n"
    host.sshd_stop()
    assert "refused" in ssh(lab2, host.name, "true").stderr
    assert session.poll() is None
    host.sshd_start()
    assert ssh(lab2, host.name, "true").returncode == 0
    host.sshd_kill_sessions()
    assert session.wait(5) == 255
    session.communicate()


# --- what is left ---------------------------------------------------------------------------------------------------


def test_a_marked_process_is_found_and_fails_the_check(lab2: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.fixtures.SECONDS_TO_END", 0.1)
    ssh(lab2, "node-1", "DDP_ORCH_RUN_ID=run-7 setsid sleep 1000 > /dev/null 2>&1 < /dev/null &")
    lab2.popen(["sleep", "1001"], env={"DDP_ORCH_RUN_ID": "run-8"})
    wait_until(lambda: len(lab2.marked()) == 2, 5, "both processes run")
    wait_until(lambda: lab2.hosts[1].marked()[0].argv[0] == "sleep", 5, "setsid has become sleep")
    assert [p.argv for p in lab2.hosts[1].marked("run-7")] == [("sleep", "1000")]
    assert lab2.hosts[1].marked("run-8") == []
    assert list(lab2.marked("run-8")) == ["controller"]
    with pytest.raises(AssertionError, match=r"node-1: pid \d+: sleep 1000\ncontroller: pid \d+: sleep 1001"):
        assert_nothing_left(lab2)
    lab2.reset()
    assert_nothing_left(lab2)


def test_reset_makes_all_as_new(lab2: Lab) -> None:
    near, far = lab2.hosts
    near.crash()
    far.sh("touch ~/file /tmp/file /var/tmp/file", check=True)
    far.sshd_stop()
    far.slow_dns()
    far.delay(20)
    far.cut()
    (lab2.controller_home / ".ssh/known_hosts").unlink()
    lab2.reset()
    assert ssh(lab2, "node-0", "true").returncode == 0
    assert listing(ssh(lab2, "node-1", "ls ~ /tmp /var/tmp")) == ["/home/ann:", "/tmp:", "/var/tmp:"]
    assert round_trip(near, far) < 0.02


@pytest.mark.lab
def test_the_machine_itself_is_not_changed() -> None:
    def machine() -> list[str]:
        commands = (["ip", "address"], ["ip", "route"], ["nft", "list", "ruleset"], ["cat", "/proc/self/mountinfo"])
        return [subprocess.run(command, capture_output=True, text=True).stdout for command in commands]

    before = machine()
    with Lab(2) as lab:
        lab.hosts[0].cut()
        lab.hosts[0].delay(1)
        assert machine() == before
    assert machine() == before
    assert not lab.directory.exists()


@pytest.mark.lab
def test_nothing_is_left_when_the_tests_are_killed() -> None:
    program = """
import os, sys, time
from lab import Lab
lab = Lab(2).__enter__()
lab.hosts[0].delay(5)
lab.hosts[0].limit_memory("60m")
lab.hosts[1].popen(["setsid", "sleep", "1000"])
lab.popen(["setsid", "sleep", "1000"])
pids = (lab.init, *[host.init for host in lab.hosts])
print(lab.directory, *[os.readlink(f"/proc/{pid}/ns/pid") for pid in pids], flush=True)
time.sleep(1000)
"""
    tests = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(TESTS)}, stdout=subprocess.PIPE, text=True
    )
    with tests:
        assert tests.stdout is not None
        directory, *tables = tests.stdout.readline().split()

        def alive() -> list[int]:
            return [pid for pid in pids() if process_table(pid) in tables]

        assert len(alive()) > 10
        tests.kill()
        wait_until(lambda: not alive(), 10, "no process of the lab is left")
    assert not list(memory.parent_and_limit()[0].glob(f"{Path(directory).name}*"))
    shutil.rmtree(directory)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def process_table(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # it has ended meanwhile
        return ""


# --- what it is for -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_torchrun_trains_on_two_hosts_over_the_cluster_network_alone(lab2: Lab) -> None:
    program = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {value.item()}")
dist.destroy_process_group()  # without it about one exit in ten of a gloo rank aborts or hangs
"""
    agents = []
    for rank, host in enumerate(lab2.hosts):
        host.cut("ssh")
        (host.home / "train.py").write_text(program)
        arguments = ["--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1", "--rdzv-backend=static"]
        arguments += [f"--master-addr={lab2.hosts[0].cluster_address}", "--master-port=29500"]
        arguments += [f"--local-addr={host.cluster_address}", "train.py"]
        agents.append(
            host.popen(
                [host.python, "-m", "torch.distributed.run", *arguments],
                env={"GLOO_SOCKET_IFNAME": host.links["cluster"].interface, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    for rank, agent in enumerate(agents):
        stdout, stderr = agent.communicate(timeout=120)
        assert agent.returncode == 0, stderr
        assert stdout == f"rank {rank} of 2: 3.0\n"


@pytest.mark.slow
def test_sixty_four_hosts_come_up(make_lab: Callable[..., Lab], capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    lab = make_lab(64)
    took = time.monotonic() - start
    with capsys.disabled():
        print(f"\n64 hosts up in {took:.1f} s")
    assert [host.sh("hostname").stdout.strip() for host in lab.hosts] == [f"node-{i}" for i in range(64)]
    assert ssh(lab, "node-63", "hostname").stdout == "node-63\n"


# --- what is said where there is no lab -----------------------------------------------------------------------------


@pytest.mark.parametrize("ci", ["false", "true"])
def test_tests_without_a_lab_are_left_out_aloud_and_fail_in_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    pytester.makeconftest(
        "import lab\nlab.missing = lambda: 'it needs root'\n" + (TESTS / "conftest.py").read_text().split("\n", 3)[3]
    )
    pytester.makepyfile("def test_one(lab2): ...\ndef test_two(make_lab): ...\ndef test_three(): ...")
    result = pytester.runpytest_subprocess()
    if ci == "true":
        result.assert_outcomes(passed=1, errors=2)
        result.stdout.fnmatch_lines(["*CI=true does not allow: no lab on this machine: it needs root*"])
    else:
        result.assert_outcomes(passed=1, skipped=2)
        result.stdout.fnmatch_lines(["left out: 2 tests, because no lab on this machine: it needs root"])


# --- traffic --------------------------------------------------------------------------------------------------------


def received(sender: Host, receiver: Host, count: int) -> int:
    """How many of `count` datagrams arrive."""
    program = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
s.bind(("", 7000))
print("ready", flush=True)
seen = 0
try:
    while s.recv(100) != b"end":
        seen += 1
        s.settimeout(1)
except TimeoutError:
    pass
print(seen)
"""
    listener = receiver.popen(["python3", "-c", program], stdout=subprocess.PIPE)
    with listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        send = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range({count}):
    s.sendto(b"x", ("{receiver.cluster_address}", 7000))
"""
        sender.sh("python3 -", input=send, check=True)
        return int(listener.stdout.read())


def round_trip(near: Host, far: Host) -> float:
    """Seconds, the best of five, over the cluster network."""
    program = """
import socket
s = socket.create_server(("", 7000))
print("ready", flush=True)
c = s.accept()[0]
while data := c.recv(1): c.sendall(data)
"""
    echo = far.popen(["python3", "-c", program], stdout=subprocess.PIPE)
    client = f"""
import socket, time
c = socket.create_connection(("{far.cluster_address}", 7000))
best = 9.0
for i in range(5):
    start = time.monotonic()
    c.sendall(b"x"); c.recv(1)
    best = min(best, time.monotonic() - start)
print(best)
"""
    with echo:
        assert echo.stdout is not None
        assert echo.stdout.readline() == "ready\n"
        return float(near.sh("python3 -", input=client, check=True).stdout)
