"""What programs and files of a host say becomes facts. The golden files are what nvidia-smi prints."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands import setup
from orchestrator.node.host import network
from orchestrator.node.serve import dns, facts, gpus, probe, probe_python

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "nvidia-smi").glob("*.xml"))
PROBE_PYTHON = Path(probe.__file__).with_name("probe_python.py")


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_answer_of_nvidia_smi_has_its_golden_facts(path: Path) -> None:
    assert gpus.parse(path.read_text()) == json.loads(path.with_suffix(".json").read_text())


def test_a_hung_or_missing_nvidia_smi_is_no_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.look()["gpus"] == [] and gpus.look()["error"] is None
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpus, "WINDOW", 0.2)
    assert "no answer" in gpus.look()["error"]


def test_port_range_of_the_kernel() -> None:
    assert facts.port_range("32768\t60999\n") == [32768, 60999]
    assert facts.port_range("") == [32768, 60999]


def test_name_servers_of_resolv_conf() -> None:
    text = "# made by systemd\nnameserver 10.0.0.53\nsearch example.org\noptions edns0\nnameserver fe80::1%eth0\n"
    assert dns.servers(text) == ["10.0.0.53", "fe80::1%eth0"]


def test_rdma_ports_of_sysfs(tmp_path: Path) -> None:
    (tmp_path / "mlx5_core").mkdir()
    for device, state, layer in (("mlx5_0", "4: ACTIVE", "InfiniBand"), ("mlx5_1", "1: DOWN", "Ethernet")):
        port = tmp_path / device / "ports" / "1"
        port.mkdir(parents=True)
        (tmp_path / device / "device").mkdir()
        (tmp_path / device / "device" / "driver").symlink_to("../../mlx5_core")
        for name, text in (("state", state), ("link_layer", layer)):
            (port / name).write_text(f"{text}\n")
    assert network.rdma_ports(str(tmp_path)) == [
        {
            "device": "mlx5_0",
            "port": "1",
            "state": "ACTIVE",
            "layer": "InfiniBand",
            "driver": "mlx5_core",
        },
        {
            "device": "mlx5_1",
            "port": "1",
            "state": "DOWN",
            "layer": "Ethernet",
            "driver": "mlx5_core",
        },
    ]


# --- inside the user's python


def ask_inside(tmp_path: Path, script: dict[str, Any] | None, **env: str) -> dict[str, Any]:
    question = {"script": script, "workdir": str(tmp_path), "marker": "FACTS:"}
    path = tmp_path / "question"
    path.write_text(json.dumps(question))
    with path.open("rb") as file:
        done = subprocess.run(
            [sys.executable, "-c", PROBE_PYTHON.read_text(), f"/dev/fd/{file.fileno()}"],
            pass_fds=[file.fileno()],
            env={**os.environ, **env},
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, Any] = json.loads(done.stdout.rpartition("FACTS:")[2])
    return found


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("    baton = FileBaton(os.path.join(build_directory, 'lock'))\n", "file"),
        ("from .file_baton import FileBaton\n    with FileLock(os.path.join(build_directory, 'lock')):\n", "kernel"),
        (None, None),
    ],
)
def test_how_builds_of_extensions_exclude_each_other_is_read_from_torch(
    tmp_path: Path, code: str | None, kind: str | None
) -> None:
    utils = tmp_path / "site" / "torch" / "utils"
    utils.mkdir(parents=True)
    (utils.parent / "__init__.py").touch()
    if code is not None:
        (utils / "cpp_extension.py").write_text(code)
    assert ask_inside(tmp_path, None, PYTHONPATH=str(tmp_path / "site"))["build_locks"] == kind


def test_the_torch_of_this_environment_says_how_its_builds_exclude_each_other() -> None:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs torch")
    assert probe_python.build_locks(spec.submodule_search_locations[0]) in ("file", "kernel")


def test_versions_are_read_from_files_and_torch_is_not_imported(tmp_path: Path) -> None:
    torch = tmp_path / "site" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("raise SystemExit('imported')\n")
    (torch / "version.py").write_text(
        "from typing import Optional\n__all__ = ['__version__', 'cuda']\n__version__ = '2.6.0+cu124'\n"
        "debug = False\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n"
    )
    (tmp_path / "site" / "nvidia_nccl_cu12-2.21.5.dist-info").mkdir()
    found = ask_inside(tmp_path, None, PYTHONPATH=str(tmp_path / "site"))
    assert (found["torch"], found["cuda"]) == ("2.6.0+cu124", "12.4")
    assert found["packages"]["nvidia_nccl_cu12"] == "2.21.5"


def test_a_torch_without_cuda_says_so(tmp_path: Path) -> None:
    torch = tmp_path / "site" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("")
    (torch / "version.py").write_text("__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n")
    assert ask_inside(tmp_path, None, PYTHONPATH=str(tmp_path / "site"))["cuda"] is None


def test_only_imports_that_are_made_in_any_case_are_looked_for(tmp_path: Path) -> None:
    source = (
        "import os, absent_one\nfrom absent_two.part import x\nfrom . import sibling\nimport beside\n"
        "try:\n    import absent_three\nexcept ImportError:\n    pass\n"
        "def f():\n    import absent_four\nif False:\n    import absent_five\n"
    )
    found = ask_inside(tmp_path, {"path": "train.py", "source": source, "local": ["beside"]})
    assert found["script"]["missing"] == ["absent_one", "absent_two"]


def test_a_script_that_changes_its_path_is_not_judged_by_its_imports(tmp_path: Path) -> None:
    source = "import sys\nsys.path.insert(0, 'src')\nimport absent\n"
    assert ask_inside(tmp_path, {"path": "train.py", "source": source, "local": []})["script"]["missing"] == []


def test_a_script_that_does_not_compile_is_named_with_its_line(tmp_path: Path) -> None:
    found = ask_inside(tmp_path, {"path": "train.py", "source": "x = 1\nprint('no end'\n", "local": []})
    assert "train.py line 2" in found["script"]["error"]


def test_a_script_in_the_workdir_is_read_there_with_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "train.py").write_text("import beside, absent\n")
    found = ask_inside(tmp_path, {"path": "train.py", "source": None, "local": []})
    assert found["script"]["missing"] == ["absent"]
    found = ask_inside(tmp_path, {"path": "other.py", "source": None, "local": []})
    assert found["script"]["absent"] == os.strerror(errno.ENOENT)


def test_nvlinks_by_gpu() -> None:
    text = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    text += "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n"
    assert gpus.parse_links(text) == {"GPU-a": [1, 2], "GPU-b": [2, 2]}
    assert gpus.parse_links("NVIDIA-SMI has failed\n") == {}


def test_what_joins_gpus_and_cards() -> None:
    text = (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tNV18\tSYS\tPXB\t0-51\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\tNODE\t0-51\t0\t\tN/A\n"
        "GPU2\tSYS\tSYS\t X \tSYS\t52-103\t1\t\tN/A\nNIC0\tPXB\tNODE\tSYS\t X \t\t\t\t\n\n"
        "Legend:\n\n  X    = Self\n  SYS  = the interconnect between NUMA nodes\n"
        "\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    )
    assert gpus.parse_topology(text) == {
        "GPU0": {"GPU1": "NV18", "GPU2": "SYS", "NIC0": "PXB"},
        "GPU1": {"GPU0": "NV18", "GPU2": "SYS", "NIC0": "NODE"},
        "GPU2": {"GPU0": "SYS", "GPU1": "SYS", "NIC0": "SYS"},
        "NIC0": {"GPU0": "PXB", "GPU1": "NODE", "GPU2": "SYS"},
    }
    one = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-15\tN/A\t\tN/A\n"
    assert gpus.parse_topology(one) == {"GPU0": {}}
    assert gpus.parse_topology("NVIDIA-SMI has failed\n") == gpus.parse_topology("") == {}


def test_chains_that_judge_what_comes_in() -> None:
    listed = (
        "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n"
        "\tchain output {\n\t\ttype filter hook output priority filter; policy accept;\n\t}\n}\n"
        "table ip fail2ban {\n\tchain early {\n\t\ttype filter hook input priority -10; policy accept;\n\t}\n}\n"
    )
    assert facts.input_chains(listed) == ["inet filter input"]
    assert facts.input_chains(listed.replace("drop", "accept")) == ["inet filter input", "ip fail2ban early"]
    assert facts.input_chains("") == []


def test_a_file_of_rules_that_systemd_has_not_loaded_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "text_of", lambda path: "table inet filter")
    monkeypatch.setattr(facts, "UNITS", str(tmp_path / "units"))
    assert facts._nft_file()  # without systemd, nobody knows
    (tmp_path / "units").mkdir()
    assert not facts._nft_file()
    (tmp_path / "units" / "invocation:nftables.service").symlink_to("5f0c")
    assert facts._nft_file()


def test_a_chain_of_a_file_is_told_from_one_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = "table inet %s {\n chain input {\n type filter hook input priority 0; policy drop;\n }\n}\n"
    monkeypatch.setattr(facts, "text_of", lambda path: "")
    monkeypatch.setattr(facts, "_nft_file", lambda: rules % "filter")
    monkeypatch.setattr(facts, "_nft_chains", lambda: rules % "fw")
    assert facts.firewalls()[-1].split() == ["nft", "inet", "fw", "input"]
    monkeypatch.setattr(facts, "_nft_chains", lambda: "")
    assert facts.firewalls()[-1].split() == ["nft-file", "inet", "filter", "input"]


def test_a_library_is_found_as_the_loader_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, cache = tmp_path / "[1]" / "libnccl-net-ofi.so", tmp_path / "ld.so.cache"
    plugin.parent.mkdir()
    plugin.touch()
    cache.write_bytes(b"glibc-ld.so.cache1.1\0\0libfabric.so.1\0/opt/amazon/efa/lib/libfabric.so.1\0\xff\0")
    monkeypatch.setenv("LD_LIBRARY_PATH", f":/nowhere:{plugin.parent}")
    monkeypatch.setattr(probe_python, "LOADER_CACHE", str(cache))
    fabric = "/opt/amazon/efa/lib/libfabric.so.1"
    assert probe_python.libraries(probe_python.LIBRARIES) == {"net_plugin": str(plugin), "libfabric": fabric}
    monkeypatch.setattr(probe_python, "LOADER_CACHE", "/nowhere")
    assert probe_python.libraries(probe_python.LIBRARIES) == {"net_plugin": str(plugin), "libfabric": None}


@pytest.mark.parametrize(
    ("program", "file"), [(PROBE_PYTHON.read_text(), "/dev/fd/{}"), (setup.LOOK, "{}")], ids=["check", "setup"]
)
def test_modules_in_the_folder_of_the_login_are_not_imported(tmp_path: Path, program: str, file: str) -> None:
    for name in ("json", "importlib", "os", "re", "resource", "typing"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the login')")
    with tempfile.TemporaryFile() as question:
        question.write(json.dumps({"script": None, "workdir": None, "marker": probe.MARKER}).encode())
        question.flush()
        argv = [sys.executable, "-c", program, file.format(question.fileno())]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, pass_fds=[question.fileno()])
    assert (done.returncode, done.stderr) == (0, "")
    assert "executable" in done.stdout


# --- file systems whose server is gone

FUSE, DETACH = "/dev/fuse", 2


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A mounted folder that never answers; where none can be mounted, one that is never answered for."""
    folder = tmp_path / "hung"
    folder.mkdir()
    libc = ctypes.CDLL(None)
    server = os.open(FUSE, os.O_RDWR) if os.geteuid() == 0 and os.path.exists(FUSE) else None
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    if server is not None and libc.mount(b"hung", bytes(folder), b"fuse", 0, options) == 0:
        yield folder
        os.close(server)
        libc.umount2(bytes(folder), DETACH)
        return
    closed = threading.Event()
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: exists(path) if path != str(folder) else closed.wait(60))
    monkeypatch.setattr(os.path, "isdir", lambda path: closed.wait(60))
    yield folder
    closed.set()


def test_a_file_system_that_does_not_answer_is_named_and_the_rest_is_told(
    hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(hung))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(facts, "FILES_WINDOW", 1.0)
    found = facts.files([str(hung), "/nowhere"], str(hung))
    assert found["hung"] == [str(hung)]
    assert found["paths"] == {str(hung): None, "/nowhere": os.strerror(errno.ENOENT)}
    assert found["workdir"] is True  # nothing is said of it twice
    assert set(found["disks"]) == {"state", "tmp", "shm"}
