"""Debug mode: the first call of a graph names the first stage, and the first kernel, whose numbers are wrong.

numbers        float64, how far from it a correct result may be, and the verdict    numbers.py
interpreters   graphs in their own dtypes, in float64, with other roundings         interpreters.py
kernels        each loop kernel interpreted, each compiled kernel launched          kernels.py
stages         graphs in the order of the pipeline, then kernels, then the call     stages.py
bound          a graph of one prim against the bound of the prim's row              bound.py
"""

from vendor_sdk.check.bound import beyond_bound
from vendor_sdk.check.interpreters import interpret, random_nodes
from vendor_sdk.check.kernels import Compiled
from vendor_sdk.check.numbers import largest
from vendor_sdk.check.stages import Checked

__all__ = ["Checked", "Compiled", "beyond_bound", "interpret", "largest", "random_nodes"]
