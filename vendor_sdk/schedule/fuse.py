"""Fusion: one pass in program order; each prim joins the group of what it reads, or starts its own.

Near linear: a prim looks at the groups of its operands, and ancestors are integers of bits.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.primgraph import PrimGraph, tensors_of
from vendor_sdk.lower.build import result_of
from vendor_sdk.lower.integers import COMPARISONS, DIVISIONS, PLACES
from vendor_sdk.lower.summary import Read, Summary
from vendor_sdk.lower.view import flatten
from vendor_sdk.schedule.again import DEAREST, SMALL, Again, compute_again
from vendor_sdk.schedule.batch import batch
from vendor_sdk.schedule.group import AGAIN, Group, Joined, Shape, absorb, fit, is_total, loops_of, results
from vendor_sdk.schedule.reach import Reach
from vendor_sdk.schedule.space import Index, moved, names, plain

ONCE = 32
"""Cost up to which the one prim that moves a result makes it on the way."""
WASTE = 4
"""How many times as many iterations as elements it may have."""
CHOICES = frozenset((*COMPARISONS, "bitand", "bitor", "bitnot", "where"))
"""Ops of prims that choose among elements."""
FAR = 64
"""Results of other groups that are read through at most, before it is known whether anybody would compute them again."""
SIBLINGS = 4
"""Groups that are remembered as readers of one value."""


@dataclass(frozen=True)
class Refusal:
    """Why a prim runs apart from the prims it reads from."""

    producer: str
    consumer: str
    reason: str


@dataclass
class Schedule:
    """What was decided for a graph.

    Attributes:
        kernels: groups, in the order they were started; those of one list share a launch.
        inlined: prims computed wherever they are read, by nobody on their own.
        again: what groups compute for themselves of others' members.
        refusals: neighbours that stay apart.
        fused: how many joins were made; ``fuel`` limits them.
        taken_over: prims that were on the kernel route.
    """

    kernels: list[list[Group]] = field(default_factory=list)
    inlined: dict[fx.Node, Summary] = field(default_factory=dict)
    again: Again = field(default_factory=Again)
    refusals: list[Refusal] = field(default_factory=list)
    fused: int = 0
    taken_over: set[fx.Node] = field(default_factory=set)


def fuse(
    graph: PrimGraph,
    summaries: Mapping[fx.Node, Summary],
    emitted: set[fx.Node],
    contractions: set[fx.Node],
    folds: Callable[[fx.Node], bool],
    limits: Limits,
    *,
    rows: bool,
    totals: Collection[str],
    fuel: int | None = None,
) -> Schedule:
    """Groups for the nodes on the emitter route.

    Args:
        summaries: of those that are computed element by element.
        emitted: all nodes on the emitter route.
        contractions: those that are matrix products or convolutions.
        folds: whether a node is a view that readers fold.
        rows: whether the emitter has inner nests, which rows with several passes need.
        totals: reductions for whose steps over the rows of a group the emitter has stores.
        fuel: at most so many joins.
    """
    return _Pass(graph, summaries, emitted, contractions, folds, limits, rows, totals, fuel).run()


class _Pass:
    def __init__(
        self,
        graph: PrimGraph,
        summaries: Mapping[fx.Node, Summary],
        emitted: set[fx.Node],
        contractions: set[fx.Node],
        folds: Callable[[fx.Node], bool],
        limits: Limits,
        rows: bool,
        totals: Collection[str],
        fuel: int | None,
    ) -> None:
        self.graph, self.summaries, self.emitted, self.contractions = graph, dict(summaries), emitted, contractions
        self.folds, self.limits, self.rows, self.totals, self.fuel = folds, limits, rows, totals, fuel
        self.schedule = Schedule()
        self.reach = Reach()
        self.unit: dict[fx.Node, int] = {}
        """Units by node; of groups, the number that stands for the group now."""
        self.group: dict[int, Group] = {}
        self.owner: dict[fx.Node, Group] = {}
        self.readers: dict[fx.Node, list[Group]] = {}
        self.base = _Bases()
        self.whole: dict[fx.Node, Summary] = {}
        self.moved: dict[fx.Node, fx.Node | None] = {}
        self.places: set[fx.Node] = set()
        """What is inlined since it is an index expression, and says where others are read."""

    def run(self) -> Schedule:
        self._inline()
        for node in self._visits():
            if self.folds(node) or node in self.schedule.inlined or result_of(node)[0] is not node:
                continue
            sources = self._sources(node)
            summary = self.summaries.get(node)
            if summary is None or node not in self.emitted:
                self.unit[node] = self.reach.add(sources)
                continue
            self._place(node, self._whole(node), sources)
        groups = list(dict.fromkeys(self.owner.values()))
        expanded = {node: self._whole(node) for node in self.owner}
        left = None if self.fuel is None else self.fuel - self.schedule.fused
        self.schedule.again = compute_again(groups, self.owner, expanded, self._outside, self.limits, left)
        self.schedule.fused += len(self.schedule.again.unread)
        self.schedule.kernels = batch(groups, self.reach, self.limits) if self.fuel is None else [[g] for g in groups]
        return self.schedule

    def _visits(self) -> Iterator[fx.Node]:
        """Nodes after their operands, else as the program has them, but sums of columns last: the rows whose columns they are
        have their kernel then, which adds them up in passing."""
        calls = list(self.graph.calls())
        number = {node: k for k, node in enumerate(calls)}
        waiting = {node: sum(source in number for source in node.all_input_nodes) for node in calls}
        ready = [(self._sums_columns(node), k) for k, node in enumerate(calls) if not waiting[node]]
        heapq.heapify(ready)
        while ready:
            node = calls[heapq.heappop(ready)[1]]
            yield node
            for user in node.users:
                if user in waiting:
                    waiting[user] -= 1
                    if not waiting[user]:
                        heapq.heappush(ready, (self._sums_columns(user), number[user]))

    def _sums_columns(self, node: fx.Node) -> bool:
        summary = self.summaries.get(node)
        return summary is not None and node in self.emitted and node not in self.contractions and is_total(summary)

    # What is cheap enough to compute wherever it is read

    def _inline(self) -> None:
        outputs = {result_of(n)[0] for n in self.graph.outputs if isinstance(n, fx.Node)}
        calls = list(self.graph.calls())
        fits: dict[fx.Node, bool] = {}
        leads: dict[fx.Node, bool] = {}
        for node in reversed(calls):
            leads[node] = node not in outputs and self._leads(node, leads)
            self.moved[node] = self._mover(node)
            fits[node] = node not in outputs and all(self._takes(user, node, fits) for user in node.users)
        prices: dict[fx.Node, int] = {}
        for node in calls:
            summary = self.summaries.get(node)
            if summary is None or not fits[node] or node not in self.emitted or node in self.contractions:
                continue
            if summary.steps or summary.random or isinstance(node.meta["val"], tuple | list):
                continue
            if self._ends(node, summary):
                continue
            if leads[node] and self._is_place(node, summary):
                self.places.add(node)
                prices[node] = 0
                self.schedule.inlined[node] = summary
                continue
            price = summary.cost + sum(prices.get(read.node, 0) for read in summary.reads)
            if (
                (price <= AGAIN and self._saves(node, summary))
                or (price <= ONCE and self._moves_once(node, summary))
                or self._saves_launch(node, summary)
            ):
                prices[node] = price
                self.schedule.inlined[node] = summary

    def _is_place(self, node: fx.Node, summary: Summary) -> bool:
        """Whether integers follow from where they stand alone, by arithmetic that index expressions have."""
        if not _has_places(node, summary) or (len(summary.reads) > 1 and summary.ops & DIVISIONS):
            return False
        return all(read.node in self.places for read in summary.reads)

    def _leads(self, node: fx.Node, known: Mapping[fx.Node, bool]) -> bool:
        """Whether a value only says where others are read; ``known``: of all nodes behind it."""
        for user in node.users:
            summary = self.summaries.get(user)
            if self.folds(user) or (summary is not None and user in self.emitted and _has_places(user, summary)):
                if not known[user]:
                    return False
            elif summary is None or user not in self.emitted or not any(map(summary.depends_on_data, summary.reads)):
                return False
        return True

    def _ends(self, node: fx.Node, summary: Summary) -> bool:
        """Whether a prim that a contraction reads is better made where its operand is: a contraction reads an element many
        times, and whoever computes the operand stores no more bytes than before."""
        (user,) = node.users if len(node.users) == 1 else (node,)
        if user not in self.contractions or len(summary.reads) != 1:
            return False
        (read,) = summary.reads
        maker = self.base[read.node]
        if maker not in self.summaries or maker in self.schedule.inlined or len(read.node.users) != 1:
            return False
        (result,) = tensors_of(node.meta["val"])
        return (
            maker in self.emitted
            and read.index == summary.variables
            and result.dtype.itemsize <= read.node.meta["val"].dtype.itemsize
        )

    def _moves_once(self, node: fx.Node, summary: Summary) -> bool:
        """Whether a result, and what follows from it alone, is only moved in the end, and who moves it may as well make it."""
        mover = self.moved[node]
        if mover is None or not self._stores_no_more(node, summary):
            return False
        return ix.nonnegative(ix.product(summary.shape) * WASTE - ix.product(self.summaries[mover].shape))

    def _mover(self, node: fx.Node) -> fx.Node | None:
        """The one prim that reads a result, once, and out of step, as cat and pad do; or, if it is read in step, the one that
        moves what follows from it, if that does nothing but choose among elements."""
        if len(node.users) != 1:
            return None
        (user,) = node.users
        while self.folds(user) and len(user.users) == 1:
            (user,) = user.users
        reader, summary = self.summaries.get(user), self.summaries.get(node)
        if reader is None or summary is None or reader.steps or user in self.contractions:
            return None
        reads = [read for read in reader.reads if read.node is node]
        if len(reads) != 1:
            return None
        if flatten(reads[0].index, summary.shape) != flatten(reader.variables, reader.shape):
            return user
        mover = self.moved[user]
        return mover if mover is not None and self.summaries[mover].ops <= CHOICES else None

    def _saves_launch(self, node: fx.Node, summary: Summary) -> bool:
        """Whether a kernel for a result would take longer than computing it wherever it is read: a function of the graph's
        inputs (the scale of a batch norm that is not trained), a number a row or a column of small readers."""
        if not self.limits.launch_bytes:
            return False
        expanded = self._expanded(summary)  # where each part is computed once, as in a kernel
        if any(self.base[read.node].op == "call_function" for read in expanded.reads):
            return False
        return self._saves(node, summary) and self._repeats(node, max(expanded.cost, DEAREST))

    def _repeats(self, node: fx.Node, price: int) -> bool:
        """Whether all that reads a value in the end, what follows from it first, is much larger and yet small: an element at
        ``price`` for each of theirs takes no longer than a launch."""
        size, itemsize = _elements(node), node.meta["val"].dtype.itemsize
        seen: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            for user in self._users(waiting.pop()):
                if user not in self.emitted or user not in self.summaries:
                    return False
                count = ix.product(self.summaries[user].shape)
                if not ix.nonnegative(self.limits.launch_bytes * DEAREST - count * itemsize * price):
                    return False
                if user not in seen and not ix.nonnegative(count - size * SMALL):
                    waiting.append(user)
                seen.add(user)
        return True

    def _stores_no_more(self, node: fx.Node, summary: Summary) -> bool:
        """Whether leaving a prim to its reader stores no more bytes for it than its result has: operands that kernels compute
        and nobody else reads are stored for it alone, and could have been values of the kernel that computes the result."""
        (result,) = tensors_of(node.meta["val"])
        apart = ix.ZERO
        for operand in {read.node for read in self._expanded(summary).reads}:
            maker = self.base[operand]
            known = self.summaries.get(maker)
            if known is None or known.steps or maker not in self.emitted or len(maker.users) != 1:
                continue
            apart = apart + _elements(operand) * operand.meta["val"].dtype.itemsize
        return ix.nonnegative(ix.product(summary.shape) * result.dtype.itemsize - apart)

    def _takes(self, user: fx.Node, node: fx.Node, fits: Mapping[fx.Node, bool]) -> bool:
        """Whether a reader computes its operand itself, directly or below views."""
        if user.op != "call_function":
            return False
        if self.folds(user):
            return fits.get(user, False)
        if user in self.contractions:
            return len(node.users) == 1 and user in self.emitted
        return user in self.emitted and user in self.summaries

    def _saves(self, node: fx.Node, summary: Summary) -> bool:
        """Whether reading the operands moves no more bytes than reading the result would."""
        (result,) = tensors_of(node.meta["val"])
        reads = [read for read in summary.reads if self._loads(read)]
        if not reads:
            return True
        # Made wherever it is read from several operands, it pays where contractions alone read it, and fewer bytes so.
        if len(reads) > 1 and not all(user in self.contractions for user in self._users(node)):
            return False
        if any(summary.depends_on_data(read) for read in reads):
            return False
        bytes_ = ix.product(summary.shape) * result.dtype.itemsize
        if len(reads) > 1:
            sources = {read.node: read.node.meta["val"].dtype.itemsize for read in self._expanded(summary).reads}
            return ix.nonnegative(bytes_ - sum((_elements(n) * itemsize for n, itemsize in sources.items()), ix.ZERO))
        (read,) = reads
        operand = read.node.meta["val"]
        size = _elements(read.node) * operand.dtype.itemsize
        return operand.dtype.itemsize <= result.dtype.itemsize or ix.nonnegative(bytes_ - size)

    def _loads(self, read: Read) -> bool:
        """Whether a read comes from memory in the end, and is more than one number."""
        inner = self.schedule.inlined.get(read.node)
        if inner is not None:
            return any(_elements(source.node) != 1 for source in self._expanded(inner).reads)
        return _elements(read.node) != 1

    def _users(self, node: fx.Node) -> Iterator[fx.Node]:
        """Who reads a result, below views."""
        for user in node.users:
            if self.folds(user):
                yield from self._users(user)
            else:
                yield user

    def _whole(self, node: fx.Node) -> Summary:
        """The summary of a prim with what is inlined read through, once all of that is known."""
        found = self.whole.get(node)
        if found is None:
            found = self.whole[node] = self._expanded(self.summaries[node])
        return found

    def _expanded(self, summary: Summary, through: Callable[[fx.Node], Summary | None] | None = None) -> Summary:
        """The summary with what is inlined read through, or what ``through`` has summaries of."""
        reads: dict[Read, None] = {}
        made: set[Read] = set()  # once each, by however many ways they are read
        cost, statements = summary.cost, summary.statements
        stack = list(reversed(summary.reads))
        through = through or self.schedule.inlined.get
        while stack:
            read = stack.pop()
            if read in made:
                continue
            inner = through(read.node)
            if inner is None:
                reads[read] = None
                continue
            made.add(read)
            cost, statements = cost + inner.cost, statements + inner.statements
            values = {name: i for v, i in zip(inner.variables, read.index, strict=True) if (name := plain(v))}
            stack.extend(Read(r.node, moved(r.index, values)) for r in reversed(inner.reads))
        return replace(summary, reads=tuple(reads), cost=cost, statements=statements)

    # Groups

    def _sources(self, node: fx.Node) -> set[int]:
        """Units that a node waits for."""
        units: set[int] = set()
        seen: set[fx.Node] = set()
        stack = list(node.all_input_nodes)
        while stack:
            source = stack.pop()
            if source in seen:
                continue
            seen.add(source)
            base = self.base[source]
            if base in self.owner:
                units.add(self.owner[base].unit)
            elif base in self.unit:
                units.add(self.unit[base])
            elif base.op == "call_function":
                stack.extend(base.all_input_nodes)
        return units

    def _outside(self, node: fx.Node) -> set[fx.Node]:
        """Who reads a member outside its group, below views and what is inlined."""
        found: set[fx.Node] = set()
        waiting = list(node.users)
        while waiting:
            user = waiting.pop()
            if user in self.schedule.inlined or (user.op == "call_function" and self.folds(user)):
                waiting.extend(user.users)
            elif user not in self.owner[node].members:
                found.add(user)
        return found

    def _place(self, node: fx.Node, summary: Summary, sources: set[int]) -> None:
        contraction = node in self.contractions
        producers = list(dict.fromkeys(self.owner[b] for r in summary.reads if (b := self.base[r.node]) in self.owner))
        producers.sort(key=lambda g: (g.shape != "rows", g.shape != "contraction", -len(g.members)))
        home: Group | None = None
        tried: set[Group] = set()
        ways = () if contraction else (summary, self._behind(summary)) if is_total(summary) else (summary,)
        for known in ways:
            for group in [*producers, *self._siblings(known)]:
                if home is not None or group in tried:
                    continue
                tried.add(group)
                reason = self._join(node, summary, group, sources, known)
                if not reason:
                    home = group
                elif group in producers:
                    self._refuse(node, summary, group, reason)
        if home is None:
            home = self._start(node, summary, sources, contraction)
        else:
            for group in producers:
                if group is not home and group.unit in self.group:
                    reason = self._merge(home, group, node, summary)
                    if reason:
                        self._refuse(node, summary, group, reason)

    def _refuse(self, node: fx.Node, summary: Summary, group: Group, reason: str) -> None:
        producer = next(b for r in summary.reads if (b := self.base[r.node]) in group.members)
        self.schedule.refusals.append(Refusal(producer.name, node.name, reason))

    def _behind(self, summary: Summary, group: Group | None = None) -> Summary:
        """The summary with members of other groups read through that readers may compute for themselves (``compute_again``)."""

        made = itertools.count()

        def made_again(node: fx.Node) -> Summary | None:
            owner = self.owner.get(node, group)
            price = None if owner is group or owner is None else owner.prices[node]
            return self._whole(node) if price is not None and price <= DEAREST and next(made) < FAR else None

        return self._expanded(summary, made_again)

    def _siblings(self, summary: Summary) -> list[Group]:
        """Groups that read the same large values."""
        found: dict[Group, None] = {}
        for read in summary.reads:
            for group in self.readers.get(read.node, ()):
                if group.unit in self.group and names(read.index):
                    found[group] = None
        return list(found)

    def _start(self, node: fx.Node, summary: Summary, sources: set[int], contraction: bool) -> Group:
        unit = self.reach.add(sources)
        rows, columns = loops_of(summary)
        reduces = bool(summary.steps and columns) and not contraction
        shape: Shape = "contraction" if contraction else "rows" if reduces else "pointwise"
        group = Group(unit, shape, rows, columns if reduces else {})
        self.group[unit] = group
        self._add(group, node, summary, Joined({}, "row" if reduces else "element"))
        return group

    def _join(self, node: fx.Node, summary: Summary, group: Group, sources: set[int], known: Summary) -> str:
        """Makes a prim a member of a group, which shares what ``known`` reads; or says why not."""
        if self.fuel is not None and self.schedule.fused >= self.fuel:
            return "out of fuel"
        if not self.reach.may_join(group.unit, sources):
            return "something between them runs elsewhere"

        def elsewhere() -> bool:
            return any(user is not node and user not in self.owner for m in group.members for user in m.users)

        pads = node.target is torch.ops.aten.constant_pad_nd.default
        joined = fit(group, known, self.base, shared_elsewhere=elsewhere, pads=pads)
        if isinstance(joined, str):
            return joined
        reason = self._room(group, node, summary, joined)
        if reason:
            return reason
        self.reach.depend(group.unit, sources)
        if joined.space is not None:
            assert joined.rows is not None
            assert joined.columns is not None
            group.substitute(joined.space)
            group.rows, group.columns = dict(joined.rows), dict(joined.columns)
            group.shape = "rows"
        self._add(group, node, summary, joined)
        self.schedule.fused += 1
        return ""

    def _room(self, group: Group, node: fx.Node, summary: Summary, joined: Joined) -> str:
        if self._too_long(group, summary):
            return f"more than {self.limits.statements} statements"
        # Counted in full only where it may matter: groups are long, and this is asked for each of their members.
        most = len(group.inputs) + len(group.members) + len(summary.reads) + len(tensors_of(node.meta["val"]))
        if most > self.limits.buffers and self._overflows(group, node, summary):
            return f"more than {self.limits.buffers} buffers"
        needs_inner = summary.steps or group.shape == "rows"
        if needs_inner and not self.rows and (joined.where == "element" or joined.reduced is not None):
            return "the emitter has no inner nests"
        if joined.reduced is not None and summary.combines[0] not in self.totals:
            return f"the emitter has no stores that combine by {summary.combines[0]}"
        width = ix.product(summary.shape).value
        if joined.reduced is not None and self.limits.total_width and (width or 0) > self.limits.total_width:
            return f"totals of rows longer than {self.limits.total_width}"
        return ""

    def _too_long(self, group: Group, summary: Summary) -> bool:
        """Whether a group and one more member would have more statements than a kernel may."""
        limit = self.limits.statements
        if group.statements + summary.statements > limit and not group.counted and self._mostly_inlined(group.own):
            group.statements, group.counted = self._statements(group.members), True
        return group.statements + summary.statements > limit

    def _mostly_inlined(self, own: int) -> bool:
        """Whether members with so many statements of their own may be fewer than were counted: what is inlined counts for every
        member that reads it, and those that read it at one place share it. To count that takes time."""
        return 2 * own <= self.limits.statements

    def _statements(self, members: Mapping[fx.Node, Index]) -> int:
        """Statements of members at these places, with those of what is inlined once at each place."""
        seen: set[Read] = set()
        total = 0
        for member, place in members.items():
            waiting = [(self.summaries[member], place)]
            while waiting:
                summary, index = waiting.pop()
                total += summary.statements
                reads = [read for read in summary.reads if read.node in self.schedule.inlined]
                if not reads:
                    continue
                values = {name: i for v, i in zip(summary.variables, index, strict=True) if (name := plain(v))}
                for read in reads:
                    there = Read(read.node, moved(read.index, values))
                    if there not in seen:
                        seen.add(there)
                        waiting.append((self.schedule.inlined[read.node], there.index))
        return total

    def _overflows(self, group: Group, node: fx.Node, summary: Summary) -> bool:
        """Whether a group and one more member would have more operands and results than a kernel may."""
        operands = {*group.inputs, *(r.node for r in summary.reads if self.base[r.node] not in group.members)}
        # A member with a reader elsewhere is a result, now or when that reader's turn comes.
        results = sum(any(u is not node and self.owner.get(u) is not group for u in m.users) for m in group.members)
        return len(operands) + results + len(tensors_of(node.meta["val"])) > self.limits.buffers

    def _add(self, group: Group, node: fx.Node, summary: Summary, joined: Joined) -> None:
        group.members[node] = moved(summary.variables, joined.values)
        group.where[node] = joined.where
        if joined.reduced is not None:
            group.reduced[node] = joined.reduced
        price: int | None = summary.cost
        for read in summary.reads:
            base = self.base[read.node]
            if base in group.members:
                before = group.prices[base]
                price = None if price is None or before is None else price + before
            else:
                group.inputs.setdefault(read.node, moved(read.index, joined.values))
                self._remember(read.node, group)
        for read in self._behind(summary, group).reads if is_total(summary) else ():
            if self.base[read.node] not in group.members:
                group.behind.setdefault(read.node, moved(read.index, joined.values))
                self._remember(read.node, group)
        group.prices[node] = None if summary.steps else price
        group.statements += summary.statements
        group.own += self.summaries[node].statements
        group.counted = False
        self.owner[node] = group

    def _remember(self, value: fx.Node, reader: Group) -> None:
        known = self.readers.setdefault(value, [])
        if reader not in known:
            known.append(reader)
            del known[:-SIBLINGS]

    def _merge(self, home: Group, other: Group, node: fx.Node, summary: Summary) -> str:
        """Makes all members of ``other``, of which ``node`` in ``home`` reads some, members of ``home``."""
        if self.fuel is not None and self.schedule.fused >= self.fuel:
            return "out of fuel"
        if not self.reach.may_merge(home.unit, other.unit):
            return "something between them runs elsewhere"
        too_long = f"more than {self.limits.statements} statements"
        if home.own + other.own > self.limits.statements:
            return too_long
        most = sum(len(group.inputs) + len(group.members) for group in (home, other))
        if most > self.limits.buffers < len({*home.inputs, *other.inputs}) + results(home) + results(other):
            return f"more than {self.limits.buffers} buffers"
        place = home.members[node]
        own = {name: i for v, i in zip(summary.variables, place, strict=True) if (name := plain(v))}
        if node in home.reduced:
            own |= {name: i for v, i in zip(summary.reduced, home.reduced[node], strict=True) if (name := plain(v))}
        values: Mapping[str, Int] | str = "nothing in common"
        for read in summary.reads:
            base = self.base[read.node]
            if base in other.members:
                values = absorb(home, other, Read(read.node, moved(read.index, own)), base)
                if not isinstance(values, str):
                    break
        if isinstance(values, str):
            return values
        for read in summary.reads:
            base = self.base[read.node]
            if base in other.members and moved(other.members[base], values) != moved(read.index, own):
                price = other.prices[base]
                if price is None or price > AGAIN:
                    return "it reads elements that other iterations compute"
        statements, counted = home.statements + other.statements, False
        if statements > self.limits.statements and self._mostly_inlined(home.own + other.own):
            statements = self._statements({**home.members, **{m: moved(i, values) for m, i in other.members.items()}})
            counted = True
        if statements > self.limits.statements:
            return too_long
        other.substitute(values)
        for member, index in other.members.items():
            home.members[member] = index
            used = names(index)
            home.where[member] = "row" if home.columns and not used & home.columns.keys() else "element"
            home.prices[member] = other.prices[member]
            self.owner[member] = home
        for value, index in other.inputs.items():
            if self.base[value] not in home.members:
                home.inputs.setdefault(value, index)
        for value in [v for v in home.inputs if self.base[v] in home.members]:
            del home.inputs[value]
        for value, index in other.behind.items():
            home.behind.setdefault(value, index)
        for value in (*other.inputs, *other.behind):
            known = self.readers.get(value, [])
            known[:] = list(dict.fromkeys(home if g is other else g for g in known))
        home.statements = statements
        home.own += other.own
        home.counted = counted
        self.reach.merge(home.unit, other.unit)
        del self.group[other.unit]
        self.schedule.fused += 1
        return ""


def _has_places(node: fx.Node, summary: Summary) -> bool:
    """Whether a prim makes integers by arithmetic that index expressions have."""
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.dtype == torch.int64 and not summary.steps and summary.ops <= PLACES


class _Bases(dict[fx.Node, fx.Node]):
    """Value to the node that computes it."""

    def __missing__(self, node: fx.Node) -> fx.Node:
        self[node] = result_of(node)[0]
        return self[node]


def _elements(node: fx.Node) -> Int:
    return ix.product([ix.from_size(n) for n in node.meta["val"].shape])
