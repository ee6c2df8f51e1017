"""Kinds of x86 processors on which results differ, and how a better one is made to act as each.

Three libraries choose code by processor: torch's own loops (vectors of 256 or 512 bits), oneDNN
(products in float32 with other sums; bfloat16 by products of pairs from AVX-512 with bfloat16 on,
by tiles from AMX on, not at all with AVX2), and the C++ kernels, which the compiler writes for this
machine (lanes of 4, 8 or 16, with or without conversions to bfloat16).
"""

import os
import platform
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from headwise.ops.cpp import build

WRAPPER = """#!/bin/sh
for option; do
  shift
  [ "$option" = -march=native ] && option=-march={march}
  set -- "$@" "$option"
done
exec {compiler} "$@"
"""


@dataclass(frozen=True)
class Processor:
    """A kind of processor.

    Attributes:
        aten: torch's loops, ATEN_CPU_CAPABILITY.
        onednn: most that oneDNN uses, ONEDNN_MAX_CPU_ISA.
        march: for which the C++ kernels are compiled.
        flags: of /proc/cpuinfo, without which this machine cannot act as it.
    """

    name: str
    aten: str
    onednn: str
    march: str
    flags: frozenset[str]

    def missing(self):
        """What this machine lacks, or None."""
        if platform.machine() != "x86_64" or not Path("/proc/cpuinfo").exists():
            return "another kind of processor"
        lacking = self.flags - set(Path("/proc/cpuinfo").read_text("utf-8").split())
        return f"this processor has no {', '.join(sorted(lacking))}" if lacking else None

    def environment(self, folder):
        """Variables of a process that acts as this processor; its compiler is put into `folder`."""
        compiler = os.environ.get("CXX") or next(filter(shutil.which, build.COMPILERS))
        wrapper = folder / "compiler"
        words = shlex.join(shlex.split(compiler))
        wrapper.write_text(WRAPPER.format(march=self.march, compiler=words), encoding="utf-8")
        wrapper.chmod(0o755)
        settings = {"ATEN_CPU_CAPABILITY": self.aten, "ONEDNN_MAX_CPU_ISA": self.onednn}
        return {**os.environ, **settings, "CXX": str(wrapper)}


AVX2 = frozenset({"avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
PROCESSORS = [
    Processor("AVX2", "avx2", "AVX2", "haswell", AVX2),
    Processor("AVX-512", "avx512", "AVX512_CORE", "x86-64-v4", AVX512),
    Processor(
        "AVX-512 with bfloat16", "avx512", "AVX512_CORE_BF16", "cooperlake",
        AVX512 | {"avx512_bf16"},
    ),
    Processor(
        "AMX", "avx512", "AVX512_CORE_AMX", "sapphirerapids",
        AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16"},
    ),
]  # fmt: skip
