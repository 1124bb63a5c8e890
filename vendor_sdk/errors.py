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
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "", where: str = "") -> None:
        self.what, self.why, self.fix, self.where = what, why, fix, where
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class BackendNotFoundError(VendorSDKError):
    """No installed distribution and no ``vendor_sdk.register`` call offers a backend of this name."""


class BackendNameCollisionError(VendorSDKError):
    """Two distributions offer a backend under one name; neither is chosen silently."""


class PluginLoadError(VendorSDKError):
    """A plugin's entry point raised while it was imported."""


class ContractError(VendorSDKError):
    """A plugin broke the contract: a misspelled or missing hook, an unknown prim, a wrong return type."""


class VersionMismatchError(ContractError):
    """A plugin asks for a contract or opset version this SDK does not speak."""


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
    """A vendor's kernel raised, or returned the wrong number, shape, dtype or device."""


class CompilerError(VendorSDKError):
    """A target compiler (g++, clang++, ptxas, ...) is missing or refused generated code."""


class DeviceError(VendorSDKError):
    """A device refused an allocation or a copy, or is absent."""
