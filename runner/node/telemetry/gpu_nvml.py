"""GPU figures from the driver's own library through ctypes: needs no package and no child process.

Prototypes and structures are those of nvml.h: unchanged since NVML 4, processes as of NVML 11.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Optional

from ...protocol.telemetry import GpuCard, GpuUse

LIBRARY = "libnvidia-ml.so.1"
_TEMPERATURE_GPU = 0
_THERMAL = 0x20 | 0x40
"""nvmlClocksThrottleReasonSwThermalSlowdown, nvmlClocksThrottleReasonHwThermalSlowdown."""
_MOST_PROCESSES = 64
_UNKNOWN = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE."""


class _Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _NvmlProcess(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """An open NVML library.

    Raises:
        OSError: The library is missing, or initialisation fails (a driver mismatch, a lost device).
    """

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        if not self._call("nvmlInit_v2"):
            raise OSError(f"{library} cannot be initialised")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self._devices = {}
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)):
                self._devices[index] = handle

    def read(self) -> List[GpuUse]:
        """Return the `gpus` of a telemetry record: use in percent, bytes, watts, °C; without values a card lacks."""
        return [self._one(index, handle) for index, handle in self._devices.items()]

    def cards(self) -> Dict[int, GpuCard]:
        """Return the constants of each GPU: `name`, `power_limit` in watts."""
        return {index: self._card(handle) for index, handle in self._devices.items()}

    def memory_of(self) -> Dict[int, Dict[int, Optional[int]]]:
        """Return the bytes that each process (pid) uses on each GPU, None if the driver does not report them."""
        return {index: self._processes(handle) or {} for index, handle in self._devices.items()}

    def close(self) -> None:
        self._call("nvmlShutdown")

    def _one(self, index: int, handle: ctypes.c_void_p) -> GpuUse:
        gpu = GpuUse(index=index)
        rates, memory, milliwatt, celsius = _Rates(), _Memory(), ctypes.c_uint(), ctypes.c_uint()
        if self._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates)):
            gpu["use"] = rates.gpu
        if self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)):
            gpu["mem_used"], gpu["mem_total"] = memory.used, memory.total
        if self._call("nvmlDeviceGetPowerUsage", handle, ctypes.byref(milliwatt)):
            gpu["power"] = milliwatt.value / 1000
        if self._call("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU, ctypes.byref(celsius)):
            gpu["temp"] = celsius.value
        reasons = ctypes.c_ulonglong()
        if self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(reasons)):
            gpu["throttle"] = bool(reasons.value & _THERMAL)
        processes = self._processes(handle)
        if processes is not None:
            gpu["pids"] = list(processes)
        return gpu

    def _card(self, handle: ctypes.c_void_p) -> GpuCard:
        card = GpuCard()
        name, milliwatt = ctypes.create_string_buffer(96), ctypes.c_uint()
        if self._call("nvmlDeviceGetName", handle, name, ctypes.c_uint(96)):
            card["name"] = name.value.decode("utf-8", "replace")
        if self._call("nvmlDeviceGetEnforcedPowerLimit", handle, ctypes.byref(milliwatt)):
            card["power_limit"] = milliwatt.value / 1000
        return card

    def _processes(self, handle: ctypes.c_void_p) -> Optional[Dict[int, Optional[int]]]:
        count, found = ctypes.c_uint(_MOST_PROCESSES), (_NvmlProcess * _MOST_PROCESSES)()
        if not self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), found):
            return None
        return {one.pid: None if one.memory == _UNKNOWN else one.memory for one in found[: count.value]}

    def _call(self, name: str, *arguments: Any) -> bool:
        """Call a function; False if this driver does not have it, or it does not return NVML_SUCCESS."""
        function: Optional[Callable[..., int]] = getattr(self._library, name, None)
        return function is not None and function(*arguments) == 0


def memory_by_process(library: str = LIBRARY) -> Dict[int, int]:
    """Return the bytes of each process (pid) on all GPUs together; 0 if the driver does not report them.

    Raises:
        OSError: As for Nvml.
    """
    nvml = Nvml(library)
    summed: Dict[int, int] = {}
    for holders in nvml.memory_of().values():
        for pid, memory in holders.items():
            summed[pid] = summed.get(pid, 0) + (memory or 0)
    nvml.close()
    return summed
