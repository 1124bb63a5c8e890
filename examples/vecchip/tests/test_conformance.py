"""The whole test file of a vendor: every prim and dtype that the opset allows, certified on the chip."""

from conformance.test_prims import test_prim

__all__ = ["test_prim"]
