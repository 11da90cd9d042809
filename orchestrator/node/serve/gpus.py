"""The GPUs of this host, by nvidia-smi. It is asked once: a driver without persistence is slow to answer."""

import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..host import processes, state
from ..host.run_command import output_of

if TYPE_CHECKING:
    import xml.etree.ElementTree as ElementTree

QUERY = ["-q", "-x"]
LINKS = ["nvlink", "-s"]
TOPOLOGY = ["topo", "-m"]
WINDOW = 30.0  # s for it to answer; where a GPU has died it may hang
LOST = ("GPU is lost", "Unknown Error", "ERR!")  # what stands in the fields of a GPU that does not answer
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
XID = ["dmesg"]
XID_WINDOW = 3.0  # s


def look() -> Dict[str, Any]:
    """gpus, driver, cuda (the newest that the driver can serve), error (what nvidia-smi said instead), xids."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"gpus": [], "driver": None, "cuda": None, "error": None, "xids": []}
    # all at once: each has to wake a driver without persistence
    questions = [_Question([program] + arguments) for arguments in (QUERY, LINKS, TOPOLOGY)]
    deadline = time.monotonic() + WINDOW
    text, links, topology = [question.answer(deadline) for question in questions]
    result = parse(text)
    active, paths = parse_links(links), parse_topology(topology)
    for gpu in result["gpus"]:
        gpu["nvlinks"] = active.get(gpu["uuid"])
        gpu["paths"] = paths.get("GPU%d" % gpu["index"])
        for process in gpu["processes"]:
            process["uid"] = processes.owner(process["pid"])
            process["command"] = processes.command(process["pid"])[:200]
    return dict(result, xids=_xids())


def usage(_: Dict[str, Any]) -> Dict[str, Any]:
    """`gpus`, each with its `users`; driver; problem (what nvidia-smi said instead)."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"gpus": [], "driver": None, "problem": None}
    result = parse(_Question([program] + QUERY).answer(time.monotonic() + WINDOW))
    for gpu in result["gpus"]:
        gpu["users"] = [dict(process, **_user(process["pid"])) for process in gpu["processes"]]
    return {"gpus": result["gpus"], "driver": result["driver"], "problem": result["error"]}


def _user(pid: int) -> Dict[str, Any]:
    uid = processes.owner(pid)
    run_id = processes.environment(pid).get(processes.MARK, "")
    return {
        "user": None if uid is None else processes.user_name(uid),
        "command": processes.command(pid)[:200],
        "run_id": run_id if state.LISTED.match(run_id) else None,
    }


class _Question:
    """A program that is asked, and what it says: its output, or why there is none."""

    def __init__(self, argv: List[str]) -> None:
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._error = ""
        try:
            self._process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            self._error = str(error)

    def answer(self, deadline: float) -> str:
        if self._process is None:
            return self._error
        try:
            data = self._process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            self._process.kill()  # and not waited for: one that hangs in the driver does not die
            return "no answer within %d s" % WINDOW
        return data.decode("utf-8", "replace")


def parse(text: str) -> Dict[str, Any]:
    """The answer to QUERY. Drivers differ in what they tell: what is not there is None."""
    import xml.etree.ElementTree as ElementTree  # every session loads this module, and few ask for GPUs

    start, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    try:
        root = ElementTree.fromstring(text[start : end + 17] if start >= 0 and end >= 0 else "")  # noqa: S314
    except ElementTree.ParseError:
        lines = ["incomplete output"] if start >= 0 else [line.strip() for line in text.splitlines() if line.strip()]
        return {"gpus": [], "driver": None, "cuda": None, "error": " ".join(lines[:2])[:300] or "no output"}
    gpus = [_gpu(number, element) for number, element in enumerate(root.findall("gpu"))]
    return {
        "gpus": gpus,
        "driver": _text(root, "driver_version"),
        "cuda": _text(root, "cuda_version"),
        "error": None if gpus else "No devices were found",
    }


def _gpu(number: int, gpu: "ElementTree.Element") -> Dict[str, Any]:
    slowed = [
        reason.tag.split("_reason_", 1)[1]
        for name in ("clocks_event_reasons", "clocks_throttle_reasons")  # its name since driver 535, and before
        for reason in gpu.findall(name + "/*")
        if reason.text == "Active" and reason.tag.endswith(("hw_slowdown", "thermal_slowdown", "power_brake_slowdown"))
    ]
    return {
        "index": number,
        "uuid": _text(gpu, "uuid"),
        "bus": gpu.get("id"),
        "name": _text(gpu, "product_name"),
        "memory_mib": _number(gpu, "fb_memory_usage/total"),
        "used_mib": _number(gpu, "fb_memory_usage/used"),
        "busy": _number(gpu, "utilization/gpu_util"),
        "celsius": _number(gpu, "temperature/gpu_temp"),
        "compute_mode": _text(gpu, "compute_mode"),
        "persistence": _text(gpu, "persistence_mode"),
        "mig": _text(gpu, "mig_mode/current_mig"),
        "fabric": _text(gpu, "fabric/state"),
        "uncorrected_ecc": _uncorrected(gpu),
        "repair": _repair(gpu),
        "slowed": slowed,
        "pcie_lanes": _lanes(gpu, "current_link_width"),
        "pcie_lanes_most": _lanes(gpu, "max_link_width"),
        "clock_mhz": _number(gpu, "clocks/sm_clock"),
        "clock_most_mhz": _number(gpu, "max_clocks/sm_clock"),
        "application_clock_mhz": _number(gpu, "applications_clocks/graphics_clock"),
        "application_clock_default_mhz": _number(gpu, "default_applications_clocks/graphics_clock"),
        "power_limit_w": _power(gpu, "current_power_limit", "power_limit"),
        "power_default_w": _power(gpu, "default_power_limit", "default_power_limit"),
        "lost": any(word in (element.text or "") for element in gpu.iter() for word in LOST),
        "processes": [
            {"pid": int(pid), "used_mib": _number(element, "used_memory")}
            for element in gpu.findall("processes/process_info")
            for pid in [_text(element, "pid")]
            if pid and pid.isdigit() and (_text(element, "type") or "C") != "G"  # G: a desktop's
        ],
    }


def parse_links(text: str) -> Dict[str, List[int]]:
    """The answer to LINKS: {uuid of a GPU: [active NVLinks, all of its NVLinks]}."""
    by_gpu: Dict[str, List[int]] = {}
    uuid = ""
    for line in text.splitlines():
        named = re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line)
        if named:
            uuid = named.group(1)
        elif uuid and re.match(r"\s+Link \d+: ", line):
            active, every = by_gpu.get(uuid, [0, 0])
            by_gpu[uuid] = [active + ("inactive" not in line), every + 1]
    return by_gpu


def parse_topology(text: str) -> Dict[str, Dict[str, str]]:
    """The answer to TOPOLOGY: {`GPU0`: {`GPU1`: `NV18`, `NIC0`: `PXB`}}, each pair of devices with what joins them."""
    rows = [line.split() for line in ESCAPES.sub("", text).splitlines()]
    devices = next((row[: row.index("CPU")] for row in rows if row[:1] == ["GPU0"] and "CPU" in row), [])
    return {
        row[0]: {device: row[place] for place, device in enumerate(devices, 1) if row[place] != "X"}
        for row in rows
        if row and row[0] in devices and len(row) > len(devices) and "CPU" not in row
    }


def _lanes(gpu: "ElementTree.Element", name: str) -> Optional[int]:
    """`16x` -> 16."""
    text = _text(gpu, "pci/pci_gpu_link_info/link_widths/" + name) or ""
    return int(text[:-1]) if text[:-1].isdigit() else None


def _power(gpu: "ElementTree.Element", name: str, old_name: str) -> Optional[float]:
    """Watts. The names are those since driver 530, and before."""
    text = _text(gpu, "gpu_power_readings/" + name) or _text(gpu, "power_readings/" + old_name) or ""
    try:
        return float(text.split(" ")[0])
    except ValueError:
        return None


def _uncorrected(gpu: "ElementTree.Element") -> Optional[int]:
    """Memory errors since the driver was loaded that could not be corrected. None where the board has no ECC."""
    counts = [
        _number(element, ".")
        for element in gpu.findall("ecc_errors/volatile/*")
        if "uncorrectable" in element.tag and element.text is not None
    ]
    counts.append(_number(gpu, "ecc_errors/volatile/double_bit/total"))
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _repair(gpu: "ElementTree.Element") -> Optional[str]:
    """A repair of memory that needs a reset, or has failed."""
    for path, value, what in (
        ("remapped_rows/remapped_row_failure", "Yes", "row remapping has failed"),
        ("remapped_rows/remapped_row_pending", "Yes", "row remapping is pending"),
        ("retired_pages/pending_retirement", "Yes", "page retirement is pending"),
        ("retired_pages/pending_blacklist", "Yes", "page retirement is pending"),
        ("gpu_reset_status/reset_required", "Yes", "a reset is required"),
    ):
        if _text(gpu, path) == value:
            return what
    return None


def _text(element: "ElementTree.Element", path: str) -> Optional[str]:
    text = element.findtext(path) if path != "." else element.text
    text = (text or "").strip()
    return text if text and text not in ("N/A", "[N/A]", "Not Supported") else None


def _number(element: "ElementTree.Element", path: str) -> Optional[int]:
    """`81920 MiB` -> 81920."""
    text = (_text(element, path) or "").split(" ")[0]
    return int(text) if text.isdigit() else None


def _xids() -> List[str]:
    """What the driver wrote of faults into the kernel's log, where an ordinary user may read it."""
    return [line.strip() for line in output_of(XID, XID_WINDOW).splitlines() if "NVRM: Xid" in line][-20:]
