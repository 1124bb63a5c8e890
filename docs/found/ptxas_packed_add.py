"""ptxas adds zero where a constant is added to two packed numbers of 16 bits and one half of the sum is read.

For compute capability 9.0, 10.0 and 12.0, unless it does not optimize; 12.9 does it, too. LLVM packs small integers, so kernels
that Triton compiles may compute wrong places. Found by a model with an adaptive average pool from 6x6 to 7x7.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
.version 8.7
.target sm_90
.address_size 64
.visible .entry add_five(.param .u64 source, .param .u64 to)
{
  .reg .b64 %rd<5>;
  .reg .b32 %r<4>;
  .reg .b16 %rs<5>;
  ld.param.u64 %rd1, [source];
  ld.param.u64 %rd2, [to];
  cvta.to.global.u64 %rd3, %rd1;
  cvta.to.global.u64 %rd4, %rd2;
  ld.global.u16 %rs1, [%rd3];
  ld.global.u16 %rs2, [%rd3 + 2];
  mov.b32 %r1, {%rs1, %rs2};
  mov.b32 %r2, 0x50005;
  add.s16x2 %r3, %r1, %r2;
  mov.b32 {%rs3, %rs4}, %r3;
  st.global.u16 [%rd4], %rs3;
  ret;
}
"""


def wrong() -> str:
    """What is wrong, "" where nothing is: the machine code has the constant nowhere."""
    import triton

    tools = triton.knobs.nvidia
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "add.ptx", Path(folder) / "add.cubin"
        source.write_text(PROGRAM)
        subprocess.run([tools.ptxas.path, "--gpu-name=sm_90", str(source), "-o", str(program)], check=True)
        code = subprocess.run([tools.nvdisasm.path, "-c", str(program)], capture_output=True, text=True, check=True).stdout
    return next((line.strip() for line in code.splitlines() if "VIADD.16x2" in line and "0x5" not in line), "")


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
