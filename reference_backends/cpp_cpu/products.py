"""The libraries that have what ``products.h`` declares: matrix products, and convolutions by minimal filtering.

Kernels of all graphs call them, so they are compiled once for each element type, and may be begun before the first graph that
needs them has kernels. They are loaded before those kernels' libraries, whose loader looks their functions up.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from pathlib import Path

from reference_backends.cpp_cpu import compiler

TILES, MATRICES, DOT_PRODUCTS, FILTERS = "TILES", "MATRICES", "DOT_PRODUCTS", "FILTERS"
_FILES = {
    TILES: ("base.h", "products.h", "gemm.h", "products.cpp"),
    MATRICES: ("base.h", "products.h", "gemm.h", "products.cpp"),
    DOT_PRODUCTS: ("base.h", "products.h", "gemm.h", "dots.h", "products.cpp"),
    FILTERS: ("base.h", "products.h", "gemm.h", "slides.h", "winograd.h", "winograd_weights.h", "products.cpp"),
}
Need = tuple[str, str]
"""A library: which, and its element type (C++)."""
_CALLED = {
    "Product": (TILES, MATRICES),
    "FewRowsProduct": (TILES, MATRICES, DOT_PRODUCTS),
    "VectorProduct": (DOT_PRODUCTS,),
    "Windows": (FILTERS,),
    "Overlaps": (FILTERS,),
}
"""The libraries that have the functions of what a kernel's text declares; a library may call those before it."""
_DECLARED = re.compile(rf"\b({'|'.join(_CALLED)})<(\w+)>")


def needs(text: str) -> tuple[Need, ...]:
    """The libraries whose functions a kernel's text calls, in the order in which they are to be loaded."""
    found = {(library, kind) for declared, kind in _DECLARED.findall(text) for library in _CALLED[declared]}
    return tuple(sorted(found, key=lambda need: ([*_FILES].index(need[0]), need[1])))


def key() -> str:
    """What shaped all these libraries: part of the functions' names."""
    return hashlib.sha256(f"{compiler.toolchain()}\n{_digest()}".encode()).hexdigest()[:16]


@functools.cache
def _digest() -> str:
    files = sorted({name for names in _FILES.values() for name in names})
    return hashlib.sha256("".join(map(_text, files)).encode()).hexdigest()


def source(need: Need) -> str:
    """C++ text of a library."""
    library, kind = need
    return "\n".join((f"#define PRODUCTS_KEY {key()}", *map(_text, _FILES[library]), f"{library}({kind})\n"))


def start(need: Need) -> None:
    """Begins to compile a library in the background."""
    if (need, key()) not in _loaded:
        compiler.start(source(need))


def load(need: Need) -> None:
    """Loads a library, for all that are loaded later; waits for its compiler."""
    named = need, key()
    if named not in _loaded:
        _loaded[named] = compiler.load(source(need), kind=_Shared)


_loaded: dict[tuple[Need, str], ctypes.CDLL] = {}


class _Shared(ctypes.CDLL):
    """A library whose functions others find by name."""

    def __init__(self, path: str) -> None:
        super().__init__(path, mode=ctypes.RTLD_GLOBAL)


def _text(name: str) -> str:
    return (Path(__file__).parent / name).read_text()
