"""A libnvidia-ml.so.1 for machines without a GPU: NVML's own functions, with the answers that a file gives.

Each line of the file is a GPU: its UUID, its uncorrected memory errors, and a word: `fine`, `lost` (it does not answer
on its bus) or `pending` (a remapping of rows is pending). A line `hang` makes every call hang.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { SUCCESS = 0, NOT_SUPPORTED = 3, GPU_IS_LOST = 15, UNKNOWN = 999, MOST = 16 };
static struct gpu { char uuid[80]; unsigned long long errors; char word[16]; } gpus[MOST];
static unsigned count;
static int load(void) {
    char line[160];
    const char *path = getenv("FAKE_NVML");
    FILE *file = fopen(path ? path : BESIDE, "r");
    if (!file) return UNKNOWN;
    for (count = 0; count < MOST && fgets(line, sizeof line, file); ) {
        struct gpu *gpu = &gpus[count];
        if (!strncmp(line, "hang", 4)) for (;;) pause();
        if (sscanf(line, "%79s %llu %15s", gpu->uuid, &gpu->errors, gpu->word) == 3) count++;
    }
    fclose(file);
    return SUCCESS;
}
static int is(struct gpu *gpu, const char *word) { return !strcmp(gpu->word, word); }
int nvmlInit_v2(void) { return load(); }
int nvmlDeviceGetCount_v2(unsigned *number) { *number = count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **handle) {
    if (index >= count) return 2;
    if (is(&gpus[index], "lost")) return GPU_IS_LOST;
    *handle = &gpus[index];
    return SUCCESS;
}
int nvmlDeviceGetUUID(struct gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->uuid);
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(struct gpu *gpu, int kind, int counter, unsigned long long *number) {
    if (kind != 1 || counter != 0) return NOT_SUPPORTED;
    *number = gpu->errors;
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(struct gpu *gpu, unsigned *ok, unsigned *bad, unsigned *pending, unsigned *failed) {
    *ok = *bad = *failed = 0;
    *pending = is(gpu, "pending");
    return SUCCESS;
}
int nvmlDeviceGetRetiredPagesPendingStatus(struct gpu *gpu, int *pending) { return NOT_SUPPORTED; }
int nvmlDeviceGetUtilizationRates(struct gpu *gpu, unsigned *rates) { rates[0] = 41; return SUCCESS; }
int nvmlDeviceGetMemoryInfo(struct gpu *gpu, unsigned long long *memory) {
    memory[0] = 80ULL << 30;
    memory[1] = 75ULL << 30;
    memory[2] = 5ULL << 30;
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(struct gpu *gpu, unsigned *milliwatts) { *milliwatts = 70000; return SUCCESS; }
int nvmlDeviceGetTemperature(struct gpu *gpu, int sensor, unsigned *celsius) { *celsius = 31; return SUCCESS; }
"""


def build(folder: Path) -> Path:
    """Compile it. `folder` belongs into LD_LIBRARY_PATH.

    The answers are in the file that FAKE_NVML names, else in `gpus` in `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "nvml.c", folder / "libnvidia-ml.so.1"
    source.write_text(SOURCE)
    beside = f'-DBESIDE="{folder}/gpus"'
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", beside, "-o", str(library), str(source)], check=True)
    return library


def answers(*gpus: str) -> str:
    """The content of the file: each GPU is `ERRORS WORD`."""
    return "".join(f"{uuid(number)} {gpu}\n" for number, gpu in enumerate(gpus))


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012x}"
