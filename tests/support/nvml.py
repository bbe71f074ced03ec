"""An NVML made for a test: a library that lists the processes that a file names, and ftlaunch with a driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Device 1 of two is at work. While the file `silent` exists, the driver does not answer.
_LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu, compute; } process;
typedef struct { unsigned gpu, memory; } rates;
static FILE *file_of_test(const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), name);
    return fopen(path, mode);
}
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetUtilizationRates(void *device, rates *found) {
    found->gpu = (long)device == 2 ? 80 : 1;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *found) {
    unsigned room = *count, listed = 0, gpu, pid, mib;
    FILE *file;
    if (!found) { *count = 1; return 7; }
    while ((file = file_of_test("silent", "r"))) { fclose(file); usleep(10000); }
    if ((file = file_of_test("asked", "a"))) { fputc('x', file); fclose(file); }
    if ((file = file_of_test("listed", "r"))) {
        while (fscanf(file, "%u %u %u", &gpu, &pid, &mib) == 3)
            if (gpu + 1 == (long)device && listed < room) {
                memset(&found[listed], 0, sizeof *found);
                found[listed].pid = pid;
                found[listed++].memory = (unsigned long long)mib << 20;
            }
        fclose(file);
    }
    *count = listed;
    return 0;
}
"""
_WITH_DRIVER = """\
from functools import partial
from pathlib import Path
from ftlaunch.engine import main as engine
from ftlaunch.nodes.agent.node import node_ranks
from ftlaunch.system.gpu_activity import Gpus
engine.Gpus = node_ranks.Gpus = partial(Gpus, Path("/dev/null"))
from ftlaunch.cli.launch import main
main()
"""
MODULE = "ftlaunch_with_driver"
"""the module, in the folder of the library, that is `ftlaunch` on a machine that has the driver's device file"""


class FakeNvml:
    """The library, which needs a C compiler, and what it says."""

    def __init__(self, folder: Path) -> None:
        """Build the library.

        Args:
            folder: takes the library and the files by which it is told what to say.
        """
        self._folder = folder
        folder.mkdir()
        (folder / "nvml.c").write_text(_LIBRARY)
        (folder / f"{MODULE}.py").write_text(_WITH_DRIVER)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c"], cwd=folder, check=True)
        self.list()

    @property
    def env(self) -> dict[str, str]:
        """Variables of a process that is to load the library."""
        return {
            "LD_LIBRARY_PATH": str(self._folder),
            "FAKE_NVML": str(self._folder),
            "PYTHONPATH": os.pathsep.join((str(self._folder), *filter(None, sys.path))),
        }

    def list(self, *rows: tuple[int, int, int]) -> None:
        """From now on, list the given processes: index of the GPU, pid, and MiB of memory of each."""
        new = self._folder / "listed.new"
        new.write_text("".join(f"{gpu} {pid} {mib}\n" for gpu, pid, mib in rows))
        new.rename(self._folder / "listed")

    def fall_silent(self) -> None:
        """From now on, answer no question."""
        (self._folder / "silent").touch()

    def answer_again(self) -> None:
        """End the silence."""
        (self._folder / "silent").unlink()

    @property
    def answers(self) -> int:
        """How often the processes of a GPU were listed."""
        asked = self._folder / "asked"
        return asked.stat().st_size if asked.exists() else 0
