"""Groups of prims that will run as one kernel, and the rules by which a prim joins one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import fx

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.fused import Where
from vendor_sdk.ir.index import Int
from vendor_sdk.lower.group import TOTALS
from vendor_sdk.lower.summary import Read, Summary
from vendor_sdk.lower.view import flatten, unflatten
from vendor_sdk.schedule.space import Index, Solution, moved, names, plain, solve

AGAIN = 8
"""Cost up to which a member is computed again at another index rather than stored and loaded."""

MARGIN = 8
"""A padded result may have one element beside so many that are computed: those are filled by loops of their own."""

Shape = Literal["pointwise", "rows", "contraction", "moved"]


@dataclass(eq=False)
class Group:
    """Members, and where each stands in loops that all of them share.

    Attributes:
        unit: its number among the units of the schedule.
        shape: "pointwise": every iteration stands alone; "rows": members reduce over the columns; "contraction"; "moved": a
            prim with loops of its own, and copies of its results.
        rows, columns: names of the loop variables and their sizes.
        members: prims in program order, with their index in the loop variables.
        where: members by whether they have one element an iteration, a row or a column.
        reduced: members that reduce over the rows, with the index along what they reduce, in row variables.
        inputs: values read from outside, with the index of a first read.
        behind: values that inputs follow from, should the group compute these again, likewise.
        prices: cost of a member's element with all that is computed for it; None where a reduction is.
        statements: of all members, with what is inlined in them: once for each, or fewer where that was counted.
        own: those without what is inlined.
        counted: whether what is inlined was counted once at each place.
    """

    unit: int
    shape: Shape
    rows: dict[str, Int]
    columns: dict[str, Int]
    members: dict[fx.Node, Index] = field(default_factory=dict)
    where: dict[fx.Node, Where] = field(default_factory=dict)
    reduced: dict[fx.Node, Index] = field(default_factory=dict)
    inputs: dict[fx.Node, Index] = field(default_factory=dict)
    behind: dict[fx.Node, Index] = field(default_factory=dict)
    prices: dict[fx.Node, int | None] = field(default_factory=dict)
    statements: int = 0
    own: int = 0
    counted: bool = False

    def substitute(self, values: Mapping[str, Int]) -> None:
        """Replaces loop variables in every index."""
        for table in (self.members, self.reduced, self.inputs, self.behind):
            for node, index in table.items():
                table[node] = moved(index, values)


@dataclass(frozen=True)
class Joined:
    """How a prim fits into a group: its place there, after the group took on other loops where that is needed.

    Attributes:
        values: the prim's own variables in the group's.
        where: one element an iteration, a row or a column.
        space: loop variables of the group in the prim's own, when the group's loops become the prim's.
        rows, columns: the group's loops then.
    """

    values: Solution
    where: Where
    reduced: Index | None = None
    space: Solution | None = None
    rows: Mapping[str, Int] | None = None
    columns: Mapping[str, Int] | None = None


def results(group: Group) -> int:
    """How many members' values are stored: something outside reads them (a view counts as outside)."""
    return sum(any(user not in group.members for user in member.users) for member in group.members)


def count(sizes: Mapping[str, Int]) -> Int:
    return ix.product(sizes.values())


def loops_of(summary: Summary) -> tuple[dict[str, Int], dict[str, Int]]:
    """Rows and columns of a prim on its own."""
    rows = {name: size for v, size in zip(summary.variables, summary.shape, strict=True) if (name := plain(v))}
    columns = {name: size for v, size in zip(summary.reduced, summary.sizes, strict=True) if (name := plain(v))}
    return rows, columns


def fit(
    group: Group,
    summary: Summary,
    base: Mapping[fx.Node, fx.Node],
    *,
    shared_elsewhere: Callable[[], bool],
    pads: bool = False,
) -> Joined | str:
    """How a prim joins a group that computes, or reads, something that the prim reads; or why it does not.

    Args:
        base: value to the node that computes it.
        shared_elsewhere: says whether elements of the group are needed apart from the prim; asked where that matters.
        pads: whether the prim is a constant wherever it reads nothing.
    """
    anchors = _anchors(group, summary, base)
    if not anchors:
        return "nothing in common"
    inside = [read for read in summary.reads if base[read.node] in group.members]
    if summary.steps:
        result = _fit_reduction(group, summary, anchors, shared_elsewhere)
    else:
        result = _fit_map(group, summary, anchors, [group.where[base[read.node]] for read in inside], pads)
    if isinstance(result, str):
        return result
    for read in inside:
        reason = _readable(group, base[read.node], read, result)
        if reason:
            return reason
    return result


def _anchors(group: Group, summary: Summary, base: Mapping[fx.Node, fx.Node]) -> list[tuple[Index, Index]]:
    """Pairs of the index that the prim reads and where that value lies in the group: members first, larger ones first."""
    pairs: list[tuple[int, int, int, tuple[Index, Index]]] = []
    for read in summary.reads:
        node = base[read.node]
        place = group.members.get(node)
        order = 0
        if place is None:
            place, order = group.inputs.get(read.node, group.behind.get(read.node)), 1
        if place is not None:
            pairs.append((order, -len(names(place)), len(pairs), (read.index, place)))
    return [pair for *_, pair in sorted(pairs)]


def _fit_map(
    group: Group, summary: Summary, anchors: list[tuple[Index, Index]], sources: list[Where], pads: bool
) -> Joined | str:
    own = {name for v in summary.variables if (name := plain(v))}
    after = "column" in sources
    if after and set(sources) != {"column"}:
        return "it needs a total over all rows, and values of single rows"
    reason = "the two do not run in step"
    for read, place in anchors:
        values = _solve_map(group, summary, read, place, own, after)
        if values is None or not _covers(group, summary, values):
            continue
        used = _varying(group, list(values.values()))
        domain, where = _domain(group, used, after)
        margin = ix.product(summary.shape) - domain
        if margin != 0 and not (pads and where == "element" and _is_margin(margin, domain)):
            reason = "it has other iterations"
            continue
        return Joined(values, where)
    return reason


def _is_margin(elements: Int, inside: Int) -> bool:
    return elements.value is not None and inside.value is not None and 0 < elements.value * MARGIN <= inside.value


def _covers(group: Group, summary: Summary, values: Solution) -> bool:
    """Whether every variable stays within its size as the group's loops run, and depends on nothing else."""
    sizes = zip((*summary.variables, *summary.reduced), (*summary.shape, *summary.sizes), strict=True)
    known = {name: size for v, size in sizes if (name := plain(v))}
    return all(_within(v, known[n]) for n, v in values.items()) and (
        _varying(group, list(values.values())) <= {*group.rows, *group.columns}
    )


def _within(value: Int, size: Int) -> bool:
    """Whether a value is that of a loop variable of ``size`` iterations, whatever it follows from."""
    return ix.nonnegative(value) and ix.less(value, size)


def _varying(group: Group, values: Sequence[Int]) -> set[str]:
    """Names in expressions, but for those of sizes: loop variables of the group, in the first place."""
    return names(values) - names([*group.rows.values(), *group.columns.values()])


def _domain(group: Group, used: set[str], after: bool) -> tuple[Int, Where]:
    """Iterations of a member whose place uses these loop variables; zero where it would stand in several of them at once."""
    if after:
        return (count(group.columns) if used == group.columns.keys() else ix.wrap(int(not used))), "column"
    if group.columns and not used & group.columns.keys():
        return (count(group.rows) if used == group.rows.keys() else ix.ZERO), "row"
    whole = used == {*group.rows, *group.columns}
    return (count(group.rows) * count(group.columns) if whole else ix.ZERO), "element"


def _solve_map(group: Group, summary: Summary, read: Index, place: Index, own: set[str], after: bool) -> Solution | None:
    values = solve(read, place, own)
    if values is not None and own - values.keys():
        # A value of a row that is read for every element of it: the remaining dimensions are the columns.
        free = [name for v in summary.variables if (name := plain(v)) and name not in values]
        sizes = dict(zip((plain(v) for v in summary.variables), summary.shape, strict=True))
        if not after and [sizes[name] for name in free] == list(group.columns.values()):
            values |= {
                name: ix.variable(column, size) for name, (column, size) in zip(free, group.columns.items(), strict=True)
            }
        else:
            values = None
    if values is None:
        values = _by_position(group, summary, read, place, own) or _by_row(group, read, place, own)
    return values


def _by_row(group: Group, read: Index, place: Index, own: set[str]) -> Solution | None:
    """One element a row, anywhere in it: an index that the data decides stands where the group has its columns."""
    values: Solution = {}
    for left, right in zip(read, place, strict=True):
        name = plain(left)
        if name in own and names([right]) <= group.rows.keys():
            assert name is not None
            if values.setdefault(name, right) != right:
                return None
    return values if group.columns and values.keys() == own else None


def _by_position(group: Group, summary: Summary, read: Index, place: Index, own: set[str]) -> Solution | None:
    """The prim's elements in the order of the group's iterations, where shapes differ: a reshape stands between."""
    loops = {**group.rows, **group.columns}
    for used in (loops, group.rows):
        if ix.product(summary.shape) != count(used):
            continue
        flat = flatten([ix.variable(name, size) for name, size in used.items()], list(used.values()))
        index = unflatten(flat, summary.shape)
        values = {name: i for v, i in zip(summary.variables, index, strict=True) if (name := plain(v))}
        if moved(read, values) == place:
            return values
    return None


def _fit_reduction(
    group: Group, summary: Summary, anchors: list[tuple[Index, Index]], shared_elsewhere: Callable[[], bool]
) -> Joined | str:
    own = {name for v in (*summary.variables, *summary.reduced) if (name := plain(v))}
    across = {name for v in summary.reduced if (name := plain(v))}
    if group.shape == "contraction":
        return "a reduction over the results of a contraction"
    for read, place in anchors:
        if group.shape == "pointwise":
            values = solve(read, place, own)
            total = (
                values is not None
                and not own - values.keys()
                and _covers(group, summary, values)
                and _leading(group, values, across)
            )
            if total and _steps(summary) and shared_elsewhere():
                assert values is not None
                columns = {n: s for n, s in group.rows.items() if n not in names([values[a] for a in across])}
                rows = {n: s for n, s in group.rows.items() if n not in columns}
                if any(_across(index, rows, columns) for index in group.inputs.values()):
                    return "it sums columns, of which the loops read rows"
                # A view may take some of the elements only.
                if _once(summary.sizes, rows) and ix.product(summary.shape) == count(columns):
                    return Joined(values, "column", _reduced(summary, values), {}, rows, columns)
            space = _adopt(group, read, place)
            rows, columns = loops_of(summary)
            if space is not None and count(rows) * count(columns) == count(group.rows):
                return Joined({}, "row", None, space, rows, columns)
            continue
        values = solve(read, place, own)
        if values is None or own - values.keys():
            values = _rows_by_position(group, summary, read, place)
        if values is None or not _covers(group, summary, values):
            continue
        over = _varying(group, [values[a] for a in across])
        kept = _varying(group, [v for n, v in values.items() if n not in across])
        # The value in common may be a part of what the prim reads: then there are fewer rows than results.
        all_kept = kept <= group.rows.keys() and ix.product(summary.shape) == ix.product([group.rows[name] for name in kept])
        if over == group.columns.keys() and all_kept and _once(summary.sizes, group.columns):
            return Joined(values, "row")
        results = count(group.columns) if kept else ix.ONE
        whole = _once(summary.sizes, group.rows) and ix.product(summary.shape) == results
        if over and over == group.rows.keys() and kept <= group.columns.keys() and whole and _steps(summary):
            inner = _varying(group, [place[-1]])
            if kept and inner and inner <= group.rows.keys():
                return "it sums rows, of which the loops are over columns"
            return Joined(values, "column", _reduced(summary, values))
    return "it reduces over other loops"


def _across(index: Index, rows: Mapping[str, Int], columns: Mapping[str, Int]) -> bool:
    """Whether elements beside each other in memory are of different rows, at one column."""
    along = names(index[-1:])
    return bool(along & rows.keys() and names(index) & columns.keys() and not along & columns.keys())


def _once(sizes: tuple[Int, ...], loops: Mapping[str, Int]) -> bool:
    return ix.product(sizes) == count(loops)


def _steps(summary: Summary) -> bool:
    return summary.steps == 1 and len(summary.combines) == 1 and summary.combines[0] in TOTALS


def is_total(summary: Summary) -> bool:
    """Whether a prim sums the columns of its operands, whose rows lie along memory."""
    across = {name for v in summary.reduced if (name := plain(v))}
    read = [names([r.index[-1]]) for r in summary.reads if names(r.index) & across]
    return _steps(summary) and bool(read) and not any(last & across or not last for last in read)


def _reduced(summary: Summary, values: Solution) -> Index:
    return moved(summary.reduced, values)


def _leading(group: Group, values: Solution, across: set[str]) -> bool:
    """Whether what is reduced are the outer loops of the group and what is kept the inner ones, whole."""
    order = list(group.rows)
    over = [plain(values[a]) for a in across]
    if None in over or not over:
        return False
    return set(order[: len(over)]) == set(over) and len(order) > len(over)


def _adopt(group: Group, read: Index, place: Index) -> Solution | None:
    """The group's loop variables in the reader's own, where the value read takes each of them once, and the reader reads what
    the loops run over: of a value that both read, another slice may be in step with theirs."""
    found: Solution = {}
    for own, loop in zip(read, place, strict=True):
        name = plain(loop)
        if name is None:
            if loop != own:
                return None
        elif name in found or name not in group.rows or not _within(own, group.rows[name]):
            return None
        else:
            found[name] = own
    return found if found.keys() == group.rows.keys() else None


def _rows_by_position(group: Group, summary: Summary, read: Index, place: Index) -> Solution | None:
    """A reduction over all columns of each row whose shapes differ from the group's: a reshape stands between."""
    if ix.product(summary.shape) != count(group.rows) or not _once(summary.sizes, group.columns):
        return None
    values: Solution = {}
    for loops, variables, sizes in (
        (group.rows, summary.variables, summary.shape),
        (group.columns, summary.reduced, summary.sizes),
    ):
        flat = flatten([ix.variable(name, size) for name, size in loops.items()], list(loops.values()))
        values |= {n: i for v, i in zip(variables, unflatten(flat, sizes), strict=True) if (n := plain(v))}
    return values if moved(read, values) == place else None


def _readable(group: Group, node: fx.Node, read: Read, joined: Joined) -> str:
    """Why a member cannot be read at this index of the group's loops; empty where it can."""
    place, where = group.members[node], group.where[node]
    if joined.space is not None:
        place = moved(place, joined.space)
    index = moved(read.index, joined.values)
    if index == place:
        return "" if (where == "column") == (joined.where == "column") or joined.reduced is not None else "a total is not ready"
    if where == "column":
        return "a total is not ready" if joined.where != "column" else ""
    price = group.prices[node]
    if price is not None and (price <= AGAIN or joined.where == "row"):
        return ""
    if price is None and joined.where == "row":
        # Another element of the same row: what was reduced over the row serves it too.
        same = all(a == b for a, b in zip(index, place, strict=True) if names([b]) & group.rows.keys())
        return "" if same else "it reads other rows"
    return "it reads elements that other iterations compute"


def absorb(into: Group, other: Group, read: Read, node: fx.Node) -> Solution | str:
    """The loop variables of ``other`` in those of ``into``, whose member reads ``node`` of ``other``; or why they do not fit.

    ``read.index`` is in variables of ``into``.
    """
    if "contraction" in (into.shape, other.shape) and (into.shape != "pointwise" and other.shape != "pointwise"):
        return "two kernels with templates of their own"
    if other.shape == "contraction":
        return "a contraction starts its own kernel"
    if other.reduced or (into.reduced and other.shape != "pointwise"):
        return "totals of two groups"
    unknown = {*other.rows, *other.columns}
    values = solve(other.members[node], read.index, unknown)
    if values is None or unknown - values.keys():
        return "the two do not run in step"
    # What is read at a distance (before a padding, say) would be computed at that distance, too: beyond its end.
    sizes = {**other.rows, **other.columns}
    if not all(_within(value, sizes[name]) for name, value in values.items()):
        return "it has other iterations"
    rows, columns = (_varying(into, [values[n] for n in loops]) for loops in (other.rows, other.columns))
    if other.shape == "pointwise":
        whole = rows == {*into.rows, *into.columns} and count(other.rows) == count(into.rows) * count(into.columns)
        by_row = rows == into.rows.keys() and count(other.rows) == count(into.rows)
        return values if whole or by_row else "it has other iterations"
    # Of the rows too all must be there: a view may take one of several.
    whole = count(other.rows) == count(into.rows) and count(other.columns) == count(into.columns)
    if rows == into.rows.keys() and columns == into.columns.keys() and whole:
        return values
    return "they reduce over other loops"
