"""The conformance suite: what a backend can do, prim by prim and dtype by dtype, with evidence.

A client of what ``vendor_sdk`` exports and of nothing else: it would run unchanged against a backend whose source nobody
here has seen. Read in the order of the data: ``cases`` (what is tried), ``program`` (samples as a graph), ``subject`` (what
is certified), ``judge`` (one result against its reference), ``certify`` (one case), ``worker`` and ``pool`` (cases in processes
of their own), ``report`` and ``console`` (what came out), ``plugin`` and ``cli`` (pytest and the command line).
"""
