"""The GPUs of this host by NVML, the driver's library: nvidia-smi takes a second and a tenth of a core.

Where a GPU has died, a call may hang in the driver: call this from a thread or process that nobody has to wait for.
"""

import ctypes
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

LIBRARY = "libnvidia-ml.so.1"
UUID_LENGTH = 96
GPU_IS_LOST = 15
UNCORRECTED, VOLATILE = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t: errors since the driver was loaded


class Gpu(NamedTuple):
    """None: the GPU does not tell."""

    uuid: Optional[str]
    lost: bool  # it does not answer on its bus
    uncorrected: Optional[int]  # memory errors since the driver was loaded
    repair: Optional[str]  # of its memory, that needs a reset or has failed


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


_library: Optional[Any] = None  # False: there is none


def usage() -> List[Dict[str, Any]]:
    """All GPUs: index, busy (%), used and total (bytes), watts, celsius; None for what a GPU does not tell."""
    nvml = _initialised()
    return [_usage(nvml, index) for index in range(_count(nvml))] if nvml else []


def gpus() -> List[Gpu]:
    """The health of all GPUs, by index. Empty where there is no driver."""
    nvml = _initialised()
    return [_health(nvml, index) for index in range(_count(nvml))] if nvml else []


def _initialised() -> Any:
    global _library
    if _library is None:
        _library = _load()
    return _library


def _load() -> Any:
    try:
        library = ctypes.CDLL(LIBRARY)
        return False if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return False


def _count(nvml: Any) -> int:
    count = ctypes.c_uint()
    return 0 if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) else count.value


def _usage(nvml: Any, index: int) -> Dict[str, Any]:
    handle = ctypes.c_void_p()
    utilisation, memory, milliwatts, celsius = _Utilisation(), _Memory(), ctypes.c_uint(), ctypes.c_uint()
    known = not nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    busy = known and not nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilisation))
    sized = known and not nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    powered = known and not nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts))
    warm = known and not nvml.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(celsius))
    return {
        "index": index,
        "busy": utilisation.gpu if busy else None,
        "used": memory.used if sized else None,
        "total": memory.total if sized else None,
        "watts": milliwatts.value / 1000.0 if powered else None,
        "celsius": celsius.value if warm else None,
    }


def _health(nvml: Any, index: int) -> Gpu:
    handle = ctypes.c_void_p()
    status = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    if status:
        return Gpu(None, True, None, None)
    uuid = ctypes.create_string_buffer(UUID_LENGTH)
    named = nvml.nvmlDeviceGetUUID(handle, uuid, UUID_LENGTH)
    errors = ctypes.c_ulonglong()
    counted = nvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE, ctypes.byref(errors))
    repair, asked = _repair(nvml, handle)
    return Gpu(
        None if named else uuid.value.decode("ascii", "replace"),
        GPU_IS_LOST in (named, counted, asked),
        None if counted else errors.value,
        repair,
    )


def _repair(nvml: Any, handle: ctypes.c_void_p) -> Tuple[Optional[str], int]:
    """Also the status of the call. Ampere and newer remap rows of memory, older boards retire pages."""
    if hasattr(nvml, "nvmlDeviceGetRemappedRows"):  # since driver 450
        corrected, uncorrected, pending, failed = (ctypes.c_uint() for _ in range(4))
        rows = [ctypes.byref(value) for value in (corrected, uncorrected, pending, failed)]
        status = int(nvml.nvmlDeviceGetRemappedRows(handle, *rows))
        if not status:
            if failed.value:
                return "row remapping has failed", 0
            return ("row remapping is pending" if pending.value else None), 0
    pending = ctypes.c_uint()
    status = int(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle, ctypes.byref(pending)))
    return ("page retirement is pending" if not status and pending.value else None), status
