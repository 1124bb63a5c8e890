"""Loops without loops inside as vector code: LANES iterations a step, the rest as one masked step.

A step is a lambda over the loop variable and the number of lanes that live; a value that changes along the loop is a vector of
its name with ``_v`` behind it, one that does not is computed once before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from reference_backends.cpp_cpu.analysis import Leaf, gathers, hoist, in_turn, scatters
from reference_backends.cpp_cpu.statements import HALVES, Statements
from reference_backends.cpp_cpu.table import CTYPES, OPS, combined
from vendor_sdk import index, interior, loop

LANE = "lane"
MANY = 96
"""Statements from which on a body is compiled once, not once for whole vectors and once for the rest."""
SHORT = 4
"""Iterations up to which a loop is not worth a vector."""
BOUNDS = {
    "lt": "first_lanes(lanes_below({}, {}))",
    "le": "first_lanes(lanes_up_to({}, {}))",
    "gt": "lanes_from(lanes_up_to({}, {}))",
    "ge": "lanes_from(lanes_below({}, {}))",
}
"""Comparisons of what rises by as much from lane to lane with one number for all lanes."""
TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
"""The same with the operands in the other order."""


def known(r: loop.Range) -> int:
    """The size of a loop, as templates take it."""
    return 1 if r.size.value is None else r.size.value


class Vectors(Statements):
    """Text of vector loops."""

    varying: set[str]
    """In a step: the loop variable and the names of values that are vectors."""
    along: str
    """In a step: the loop variable."""
    past: dict[str, str]
    """In a step: for params that may be stored past the caches, the flag that says whether to."""
    runs: dict[str, str]
    """In a step: texts of random draws that share counters with their neighbours."""
    rising: dict[str, str]
    """In a step: of values that rise by as much from lane to lane, the first lane's and by how much."""
    streamed: frozenset[str] = frozenset()
    """Params that this kernel writes and never reads."""

    def vector_loop(
        self,
        r: loop.Range,
        body: Sequence[loop.Stmt],
        start: str = "0",
        end: str | None = None,
        given: Mapping[str, str] | None = None,
        after: Callable[[], None] | None = None,
        cut: bool = True,
        within: loop.Range | None = None,
    ) -> None:
        """``body`` for each value of ``r`` from ``start`` to ``end``.

        ``given``: texts of vectors that outer loops made for values that the body reads; ``after`` writes what ends a step;
        ``cut``: both bounds are multiples of ``LANES``, or the end of ``r``; ``within``: a loop to run in each step, over what
        changes with it alone.
        """
        end = end or index.to_c(r.size)
        if not given and after is None and within is None and (self.is_short(r) or gathers(body, r.var)):
            self.scalar_loop(r, body, start, end)
            return
        inside = self.prepare(r, body, start, end, given or {}, within)
        if r.size.value is None and not given and after is None and within is None and not self.runs and len(body) <= MANY:
            start = self.interior(r, inside, start, end)
        step = self.step(r, inside, given or {}, after, within=within)
        run = "run_masked" if len(body) > MANY else f"run_steps<{known(r) if cut else 1}>"
        self.out(f"{run}({start}, {end}, {step});")
        self.finish()

    def interior(self, r: loop.Range, inside: Sequence[loop.Stmt], start: str, end: str) -> str:
        """Writes the loop up to where loads reach over an edge, if they do; where it ends."""
        found = interior.interior(inside, r.var, self.varying)
        if found is None:
            return start
        to = self.fresh("inner")
        self.out(f"int64_t {to} = {end};")
        for edge in found.edges:
            first = index.to_c(index.substitute(edge.expression, {r.var: 0}) - index.symbol(edge.bound))
            self.out(f"{to} = min_int({to}, -floor_div({first}, {index.to_c(edge.step)}));")
        # The rest begins with a whole vector, unless there is none.
        self.out(f"if ({to} < {end}) {to} = {start} + max_int({to} - {start}, 0) / LANES * LANES;")
        self.out(f"run_steps<1>({start}, {to}, {self.step(r, found.body, {})});")
        return to

    def is_short(self, r: loop.Range) -> bool:
        """Whether a loop is not worth a vector."""
        return r.size.value is not None and r.size.value <= SHORT

    def scalar_loop(self, r: loop.Range, body: Sequence[loop.Stmt], start: str, end: str) -> None:
        """Left to the compiler to vectorise, unless iterations may meet."""
        if not scatters(body):
            self.out("#pragma omp simd")
        self.open_loop(r, start, end)
        self.body(body)
        self.out.close()

    def prepare(
        self,
        r: loop.Range,
        body: Sequence[loop.Stmt],
        start: str,
        end: str,
        given: Mapping[str, str],
        within: loop.Range | None = None,
    ) -> list[loop.Stmt]:
        """Opens a block with all that comes before the loop; what stays inside."""
        before, inside, varying = hoist(body, r.var, given)
        if within is not None:
            before, inside, _ = hoist(body, r.var, (*given, within.var))
        # A loop of no iterations must not load what does not exist.
        guarded = r.size.value is None and any(isinstance(s, loop.Load | loop.Compute) for s in before)
        self.out.open(f"if ({start} < {end})" if guarded else "")
        self.varying, self.along, self.past, self.runs, self.rising = varying, r.var, {}, {}, {}
        for s in before:
            self.statement(s)
        if within is not None:
            return inside
        self.runs = self.philox_runs(inside)
        made = {s.to for s in inside if isinstance(s, Leaf)} | given.keys()
        for store in inside:
            if isinstance(store, loop.Store) and self.streams(store) and not index.symbols(store.index).keys() & made:
                first = index.substitute(store.index, {r.var: index.symbol(start) if not start.isdigit() else int(start)})
                self.past[store.param] = flag = self.fresh("past")
                self.out(f"const bool {flag} = past_caches && is_aligned({store.param} + {self.sum(index.to_c(first))});")
        return inside

    def finish(self) -> None:
        self.out.close()
        self.varying, self.along, self.past = set(), "", {}

    def streams(self, s: loop.Store) -> bool:
        """Whether a store may go past the caches: contiguous, into a result that the kernel does not read."""
        return s.param in self.streamed and s.mode == "set" and self.contiguous(s.index)

    def step(
        self,
        r: loop.Range,
        inside: Sequence[loop.Stmt],
        given: Mapping[str, str],
        after: Callable[[], None] | None = None,
        extra: str = "",
        within: loop.Range | None = None,
    ) -> str:
        """Writes the lambda of one step; its name."""
        name = self.fresh("step")
        self.out.open(f"const auto {name} = [&](const int64_t {r.var}, const auto live{extra}) INLINE_LAMBDA")
        for value, text in given.items():
            self.out(f"const vec<{CTYPES[self.types[value]]}> {value}_v = {text};")
        if within is not None:
            once, inside, _ = hoist(inside, within.var)
            for leaf in once:
                self.vector_statement(leaf)
            self.open_loop(within)
        pairs = in_turn(inside, r.var)
        for s in inside:
            if id(s) not in pairs:
                self.vector_statement(s)
            elif (pair := pairs[id(s)]) is not None:
                self.store_pairs(*pair)
        if within is not None:
            self.out.close()
        if after is not None:
            after()
        self.out.close(after=";")
        return name

    def vector_statement(self, s: loop.Stmt) -> None:
        if isinstance(s, loop.Store):
            self.vector_store(s)
            return
        assert isinstance(s, Leaf)
        self.types[s.to] = s.dtype
        if s.to not in self.varying:
            self.statement(s)
            return
        self.out(f"const vec<{CTYPES[s.dtype]}> {s.to}_v = {self.vector_expression(s)};")

    def operand(self, name: str) -> str:
        """A value as a vector."""
        return f"{name}_v" if name in self.varying else f"vec<{CTYPES[self.types[name]]}>({name})"

    def contiguous(self, position: index.Int) -> bool:
        """Whether neighbouring lanes touch neighbouring elements."""
        return self.walks(position, 1)

    def walks(self, position: index.Int, by: int) -> bool:
        """Whether neighbouring lanes touch elements ``by`` apart."""
        if index.symbols(position).keys() & (self.varying - {self.along}):
            return False
        step = index.stride(position, self.along)
        return step is not None and step == by

    def lanes(self, position: index.Int, *others: str) -> str:
        """Declarations that give a lane's own variable and values their plain names."""
        names = (index.symbols(position).keys() | set(others)) & self.varying
        return "".join(
            f"const int64_t {n} = {n}_0 + {LANE}; " if n == self.along else f"const auto {n} = {n}_v[{LANE}]; "
            for n in sorted(names)
        )

    def per_lane(self, dtype: torch.dtype, position: index.Int, text: str, *others: str) -> str:
        """One lane after the other, for what is not contiguous."""
        first = f", {self.along}_0 = {self.along}"
        declared = self.lanes(position, *others)
        return f"per_lane<{CTYPES[dtype]}>(live, [&{first}](int {LANE}) INLINE_LAMBDA {{ {declared}return {text}; }})"

    def vector_expression(self, s: Leaf) -> str:
        if isinstance(s, loop.Load):
            return self.vector_load(s)
        if isinstance(s, loop.Index):
            step = index.stride(s.index, self.along)
            if step is None or index.symbols(s.index).keys() & (self.varying - {self.along}):
                return self.per_lane(torch.int64, s.index, f"(int64_t)({index.to_c(s.index)})")
            first = f"{index.to_c(s.index)}, {index.to_c(step)}"
            if step.value is not None and step.value > 0:
                self.rising[s.to] = first
            return f"iota({first})"
        assert isinstance(s, loop.Compute)
        return self.vector_compute(s)

    def vector_load(self, s: loop.Load) -> str:
        element = index.to_c(s.index)
        call, place = "load", f"{s.param} + {self.sum(element)}"
        if not self.contiguous(s.index):
            if self.walks(s.index, 2):
                call = "load_second"
            elif self.walks(s.index, -1):
                call = "load_back"
            elif (apart := self.apart(s.index)) is not None:
                call, place = "load_at", f"{s.param} + {self.sum(apart[0])}, {apart[1]}"
            else:
                return self.load_each(s, f"{s.param}[{element}]")
        if s.mask is None:
            return f"{call}({place}, live)"
        assert s.other is not None
        if s.mask in self.varying:
            return f"{call}_where({s.mask}_v, {place}, {self.operand(s.other)}, live)"
        return f"{s.mask} ? {call}({place}, live) : {self.operand(s.other)}"

    def load_each(self, s: loop.Load, element: str) -> str:
        if s.mask is None:
            return self.per_lane(s.dtype, s.index, element)
        assert s.other is not None
        return self.per_lane(s.dtype, s.index, f"{s.mask} ? {element} : {s.other}", s.mask, s.other)

    def apart(self, position: index.Int) -> tuple[str, str] | None:
        """The text of where the first lane touches memory, and that of how far from there each one does, where the latter is a
        sum of multiples."""
        names = sorted(index.symbols(position).keys() & self.varying)
        if not names:
            return None  # one element for all lanes
        steps = {n: index.stride(position, n) for n in names}
        terms = []
        for n, step in steps.items():
            if step is None or step.value is None:
                return None
            if n == self.along:
                terms.append(f"iota(0, {step.value})")
            else:
                terms.append(f"{n}_v" if step.value == 1 else f"{n}_v * vec<int64_t>({step.value}LL)")
        start = index.substitute(position, {n: 0 for n in names if n != self.along})
        return index.to_c(start), " + ".join(terms)

    def sum(self, element: str) -> str:
        """An index expression as the second operand of a sum."""
        return f"({element})" if element.startswith("-") else element

    def vector_compute(self, s: loop.Compute) -> str:
        operands = [self.operand(a) for a in s.args]
        last = s.args[-1]
        kind = CTYPES[self.types[last]]
        if s.op == "bitnot" and s.dtype == torch.bool:
            return f"!{operands[0]}"
        if s.op == "bitcast" and torch.bool in (s.dtype, self.types[last]):
            return f"convert<{CTYPES[s.dtype]}>({operands[0]})"
        if s.op in ("shl", "shr") and last not in self.varying:
            operands[1] = last
        if s.op == "div" and last not in self.varying:
            return f"op_div_by({operands[0]}, {last})"
        if s.op == "philox":
            return self.vector_philox(s, operands)
        if s.op in BOUNDS:
            first, second = s.args
            if first in self.rising and second not in self.varying:
                return BOUNDS[s.op].format(self.rising[first], second)
            if second in self.rising and first not in self.varying:
                return BOUNDS[TURNED[s.op]].format(self.rising[second], first)
        return OPS[s.op].format(*operands, args=", ".join(operands), T=f"vec<{kind}>", R=CTYPES[s.dtype], live=", live")

    def vector_philox(self, s: loop.Compute, operands: Sequence[str]) -> str:
        seed, _, word = s.args
        if seed in self.varying:
            lanes = ", ".join(f"{o}[{LANE}]" for o in operands)
            return f"per_lane<int64_t>(live, [&](int {LANE}) INLINE_LAMBDA {{ return op_philox({lanes}); }})"
        if (run := self.runs.get(s.to)) is not None:
            return run
        return f"op_philox({seed}, {operands[1]}, {operands[2] if word in self.varying else word})"

    def philox_runs(self, inside: Sequence[loop.Stmt]) -> dict[str, str]:
        """The draws of a step that take the words of neighbouring counters in order, and their text."""
        indices = {s.to: s.index for s in inside if isinstance(s, loop.Index)}
        runs: dict[str, str] = {}
        for s in inside:
            if not (isinstance(s, loop.Compute) and s.op == "philox" and s.args[0] not in self.varying):
                continue
            counter, word = indices.get(s.args[1]), indices.get(s.args[2])
            if counter is None or word is None:
                continue
            position = counter * 4 + word
            if self.contiguous(position) and word == index.mod(position, index.wrap(4)):
                state = self.fresh("philox")
                self.out(f"PhiloxRun {state};")
                runs[s.to] = f"{state}.at({s.args[0]}, {index.to_c(position)})"
        return runs

    def vector_store(self, s: loop.Store) -> None:
        element = self.sum(index.to_c(s.index))
        if not self.contiguous(s.index):
            self.store_lanes(s)
            return
        value, target = self.operand(s.value), f"{s.param} + {element}"
        if s.mode != "set":
            dtype = self.kernel.param(s.param).dtype
            before = f"load({target}, live)"
            if dtype in HALVES:
                value = combined(s.mode, f"convert<float>({before})", f"convert<float>({value})", None)
                value = f"convert<{CTYPES[dtype]}>({value})"
            else:
                value = combined(s.mode, before, value, None)
        flag = self.past.get(s.param, "false") if s.mode == "set" else "false"
        if s.mask is None:
            self.out(f"store({target}, {value}, live, {flag});")
        elif s.mask in self.varying:
            self.out(f"store_where({s.mask}_v, {target}, {value}, live, {flag});")
        else:
            self.out(f"if ({s.mask}) store({target}, {value}, live, {flag});")

    def store_pairs(self, even: loop.Store, odd: loop.Store) -> None:
        """Two stores of every second element, the second one's behind the first one's."""
        target = f"{even.param} + {self.sum(index.to_c(even.index))}"
        self.out(f"store_pairs({target}, {self.operand(even.value)}, {self.operand(odd.value)}, live);")

    def store_lanes(self, s: loop.Store) -> None:
        """One lane after the other, in order: lanes may meet in one element."""
        self.out.open("")
        own = (index.symbols(s.index).keys() | {n for n in (s.value, s.mask) if n is not None}) & self.varying
        values = sorted(own - {self.along})
        self.out(f"const int64_t {self.along}_0 = {self.along};")
        for n in values:
            self.out(f"const InMemory<{CTYPES[self.types[n]]}> {n}_m({n}_v);")
        self.out("#pragma GCC unroll 16")
        self.out.open(f"for (int {LANE} = 0; {LANE} < live.n; ++{LANE})")
        if self.along in own:
            self.out(f"const int64_t {self.along} = {self.along}_0 + {LANE};")
        for n in values:
            self.out(f"const auto {n} = {n}_m[{LANE}];")
        self.store(s)
        self.out.close(2)
