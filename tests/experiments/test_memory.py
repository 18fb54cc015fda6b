"""Settings of the C library."""

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource, sys
import torch
from avalanche_agcn.experiments.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):  # a freed piece may at first be a little too small for the next
    torch.ones(16 * 2**20)
before = faults()
for _ in range(5):
    torch.ones(16 * 2**20)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_tensors_get_memory_that_was_used_before():
    def faults(what):
        command = [sys.executable, "-c", COUNT_FAULTS, what]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < 100 < faults("as it is")
