"""Hand-written libraries: each is compiled in the background once a graph is known to need it, and loaded at its first call."""

from __future__ import annotations

import ctypes
from functools import cached_property

from reference_backends.cpp_cpu import compiler, products
from reference_backends.cpp_cpu.headers import library


class Written:
    """A library of C++ files that lie beside this one.

    Args:
        files: their names, in order.
        macros: what they find defined.
    """

    calls: tuple[products.Need, ...] = ()

    def __init__(self, *files: str, **macros: str) -> None:
        self.files, self.macros = files, macros

    def calling(self, *needs: products.Need) -> Written:
        """This library, which calls others that ``products.h`` declares."""
        self.calls = needs
        return self

    @cached_property
    def source(self) -> str:
        key = {"PRODUCTS_KEY": products.key()} if self.calls else {}
        defined = (f"#define {name} {value}\n" for name, value in {**key, **self.macros}.items())
        return "".join([*defined, *map(library, self.files)])

    def start(self) -> None:
        """Begins to compile it, unless it is in the cache."""
        if "loaded" not in self.__dict__:
            for need in self.calls:
                products.start(need)
            compiler.start(self.source)

    @cached_property
    def loaded(self) -> ctypes.CDLL:
        for need in self.calls:
            products.load(need)
        return compiler.load(self.source)

    def __call__(self) -> ctypes.CDLL:
        return self.loaded
