"""Every error this project raises: one class per cause, each saying what, where, why and how to fix it.

Rule: the message is complete on its own. A vendor engineer who reads only the last line of a traceback must know which
plugin, prim, dtype and shape is meant and what to change.
"""

from __future__ import annotations


class VendorSDKError(Exception):
    """Base of all errors raised by the SDK.

    Args:
        what: the fact, one sentence, naming the culprit first (``mychip: prim 'erfinv' (float16) has no kernel``).
        why: the cause, when it is not evident from ``what``.
        fix: what the reader does about it, in the imperative.
        where: the place in the user's program (``model.py:12 in forward``), when known.

    Attributes:
        dump: folder with the stages of the graph that failed, under ``VENDOR_SDK_DEBUG``.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "", where: str = "") -> None:
        self.what, self.why, self.fix, self.where = what, why, fix, where
        self.dump = ""
        super().__init__(self._text())

    def dumped(self, folder: str) -> None:
        """Adds ``dump`` to the message."""
        self.dump = folder
        self.args = (self._text(),)

    def _text(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        if self.dump:
            lines.append(f"  dump: {self.dump}")
        return "\n".join(lines)


class BackendNotFoundError(VendorSDKError):
    """No installed distribution and no ``vendor_sdk.register`` call offers a backend of this name."""


class BackendNameCollisionError(VendorSDKError):
    """Two distributions offer a backend under one name; neither is chosen silently."""


class PluginLoadError(VendorSDKError):
    """A plugin's entry point raised while it was imported."""


class MachineError(PluginLoadError):
    """This machine lacks what a backend says it needs (``Backend.requires``)."""


class ContractError(VendorSDKError):
    """A plugin broke the contract: a misspelled or missing hook, an unknown prim, a wrong return type."""


class VersionMismatchError(ContractError):
    """A plugin asks for a contract or opset version this SDK does not speak."""


class TorchVersionError(VendorSDKError):
    """The installed torch lacks a name, private to it, that the SDK rests on."""


class OptionError(VendorSDKError):
    """An unknown or ill-typed entry in ``torch.compile(..., options={...})``."""


class UnsupportedPrimError(VendorSDKError):
    """A prim (with its dtypes and shapes) that the backend cannot run, under ``options={"fallback": "error"}``."""


class CaptureError(VendorSDKError):
    """A captured graph holds something that prim graphs cannot (sparse outputs, for instance)."""


class LoweringError(VendorSDKError):
    """A compiler stage could not translate a node; a defect of the SDK or of a vendor's pass."""


class GraphError(VendorSDKError):
    """A prim graph broke one of its rules after a pass; a defect of the SDK or of a vendor's pass."""


class KernelError(VendorSDKError):
    """A vendor's kernel raised, or returned the wrong number, shape, dtype or device.

    ``IndexError``, and what says that memory ran out, stay what they are: those are of the program that made the call.
    """


class WrongResultError(VendorSDKError):
    """Under ``VENDOR_SDK_DEBUG_CHECK=1``: a stage of the compiler, or a kernel, changed the numbers of a graph.

    Attributes:
        stage: the first stage whose numbers differ (``"normalized"``, ``"emitted"``).
        node: the node (or kernel) to blame, as the dumps name it.
        error: the largest difference, ``inf`` where shapes or special values differ.
    """

    def __init__(
        self, what: str, *, stage: str, node: str, error: float, why: str = "", fix: str = "", where: str = ""
    ) -> None:
        super().__init__(what, why=why, fix=fix, where=where)
        self.stage, self.node, self.error = stage, node, error


class CompilerError(VendorSDKError):
    """A target compiler (g++, clang++, ptxas, ...) is missing or refused generated code."""


class DeviceError(VendorSDKError):
    """A device refused an allocation or a copy, or is absent."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A device is out of memory, even without what can be given up. Programs that try again with less catch ``MemoryError``."""
