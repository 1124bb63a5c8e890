"""g++ makes zeros of elements that a loop copies one by one under a condition, at -O3 for AVX2 with -fwrapv.

The loop around it is made one over vectors, and of the first of its iterations in which `second` holds the copies are lost.
Found by the prim `slice_scatter`, on a processor without AVX-512.
"""

import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = r"""
#include <cstdint>
#include <cstdio>
#include <cstring>
typedef float Vector __attribute__((vector_size(32)));
#define ALWAYS_INLINE __attribute__((always_inline))
static inline ALWAYS_INLINE Vector load_some(const float *from, int n) {
  Vector result{};
  for (int l = 0; l < 8; ++l)
    if (l < n) memcpy((char *)&result + 4 * l, from + l, 4);
  return result;
}
static inline ALWAYS_INLINE void store_some(float *to, Vector v, int n) {
  for (int l = 0; l < 8; ++l)
    if (l < n) memcpy(to + l, (char *)&v + 4 * l, 4);
}
static inline ALWAYS_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
// Rows 0 and 1 from a, the others from b.
__attribute__((noinline)) void join(const float *__restrict a, const float *__restrict b, float *__restrict out) {
  for (int64_t tile = 0; tile < 9; tile += 64)
    for (int64_t column = 0; column < 6; column += 64) {
      const int64_t height = least(64, 9 - tile), width = least(64, 6 - column);
      for (int64_t i = tile; i < tile + height; ++i) {
        const bool second = i - 2 >= 0;
        const auto step = [&](int64_t j, int n) ALWAYS_INLINE {
          const Vector x = load_some(a + j + 6 * i, n), y = second ? load_some(b + j + 6 * i - 12, n) : x;
          store_some(out + j + 64 * i - 64 * tile - column, y, n);
        };
        int64_t j = column;
        for (; j + 8 <= column + width; j += 8) step(j, 8);
        if (j < column + width) step(j, (int)(column + width - j));
      }
    }
}
int main() {
  static float a[54], b[42], out[4096];
  for (int i = 0; i < 54; ++i) a[i] = 1000 + i;
  for (int i = 0; i < 42; ++i) b[i] = 1 + i;
  join(a, b, out);
  for (int i = 0; i < 9; ++i)
    for (int j = 0; j < 6; ++j)
      if (const float right = i < 2 ? a[6 * i + j] : b[6 * i - 12 + j]; out[64 * i + j] != right)
        return printf("%g in row %d where %g is copied", out[64 * i + j], i, right), 0;
}
"""


def here() -> bool:
    """Whether this machine can show it."""
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return platform.machine() == "x86_64" and re.search(r"\bavx2\b", processor) is not None and shutil.which("g++") is not None


def installed() -> str:
    """The version of g++."""
    return subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "join.cpp", Path(folder) / "join"
        source.write_text(PROGRAM)
        subprocess.run(["g++", "-std=c++17", "-O3", "-mavx2", "-fwrapv", "-w", str(source), "-o", str(program)], check=True)
        return subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
