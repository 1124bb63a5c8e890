"""The conformance suite: what a backend can do, prim by prim and dtype by dtype, with evidence.

A client of what ``vendor_sdk`` exports and of nothing else: it would run unchanged against a backend whose source nobody
here has seen. Read in the order of the data: ``cases`` (what is tried), ``program`` (samples as a graph), ``subject`` (what is
certified), ``judge`` (one result against its reference) with ``subnormals``, ``certify`` (one case) with ``guards``,
``endure`` and ``witness`` (what shows beside values and after many calls), ``fused`` (generated graphs) with ``graphs`` (how
they are drawn), ``spans`` (what their results may be) and ``script`` (a failure as a program), ``probes`` (numerics),
``patterns``, ``zoo`` (what is timed), ``timing``, ``roofline`` (how), ``performance``, ``models``, ``stopwatch`` (a timed
case), ``profiles``, ``levels`` (what it adds up to), ``handed``, ``worker`` and ``pool`` (cases in processes of their own),
``expectations`` (what the vendor declares), ``session`` and ``journal`` (a run, and what is left of one that was stopped),
``report``, ``page``, ``charts`` and ``console`` (what came out), ``evidence``, ``again``, ``merge`` and ``compare`` (reports
afterwards), ``plugin``, ``cli`` and ``report_cli`` (pytest and the command line).
"""
