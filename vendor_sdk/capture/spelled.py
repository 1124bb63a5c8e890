"""Attention that a program spells out, as read in the graph of Dynamo: ``softmax(query @ key.T * scale + mask) @ value``,
or with capped scores, ``cap * tanh(query @ key.T * scale) + mask``.

Programs that are older than torch's function for it, or that may return the weights, write two products and a softmax, in
whatever words torch has for them. They are read from the softmax back to the first product, and on to the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.capture.nodes import is_torchs, value_of, word_of, writes

_PRODUCTS = frozenset(("matmul", "bmm", "mm"))
_TIMES = frozenset(("mul", "multiply"))
_OVER = frozenset(("div", "divide", "truediv", "true_divide"))
_LESS = frozenset(("sub", "subtract"))
_CASTS = frozenset(("float", "half", "bfloat16", "double", "to", "type", "type_as"))
_VIEWS = frozenset(("view", "reshape", "flatten", "unflatten"))
_MOVES = _VIEWS | {"transpose", "swapaxes", "swapdims", "permute", "getattr", "contiguous", "squeeze", "unsqueeze", "expand"}
_LEAST = -1e4
"""A number at most this large is taken to hide a key whose score it replaces: its exponential is zero in every dtype, unless
all scores that are seen lie as low."""


_LONGEST = 50
"""Nodes that are read back from the softmax at most: no program has as many between its products."""


class Step(NamedTuple):
    """Something that becomes of scores: numbers are added, or, with a ``condition``, what it hides is replaced.

    Attributes:
        added: a node, or the number that replaces.
        hides: what the condition is where it does.
        times: what is added is multiplied by it.
        at: the product, or the view of scores, whose sizes scores had then.
    """

    added: Any
    at: fx.Node
    condition: fx.Node | None = None
    hides: bool = True
    times: float = 1.0


@dataclass(frozen=True)
class Scores:
    """Scores as read up to some node.

    Attributes:
        query, key: as (..., rows, width) and (..., width, keys).
        scale: of their product.
        divisors, factors: that scale it too: of symbols, or tensors of a number for each row, head or batch.
        cap: where there is one, scores are it times the tanh of what these make of the product.
        steps: what became of it since, in order.
        chain: the nodes that are read, from the product on.
        at: the product, or the last view of it, which groups batches and heads otherwise.
        aside: nodes that are read too, but make no difference.
    """

    query: Factor
    key: Factor
    scale: float
    steps: tuple[Step, ...]
    chain: tuple[fx.Node, ...]
    at: fx.Node
    aside: tuple[fx.Node, ...] = ()
    factors: tuple[fx.Node, ...] = ()
    divisors: tuple[fx.Node, ...] = ()
    cap: float | None = None


class Factor(NamedTuple):
    """A factor of a product: a node whose dimensions are to be permuted, if ``order`` says so; None in it is a new one, of
    size one."""

    node: fx.Node
    order: tuple[int | None, ...] | None = None


class Product(NamedTuple):
    """A product of matrices (..., rows, terms) and (..., terms, columns); ``order`` permutes its result."""

    left: Factor
    right: Factor
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Spelled:
    """Attention as read.

    Attributes:
        product: of weights and values.
        dropout_p: the probability with which weights are dropped.
        nodes: all that are read from the product of queries and keys on, in order, but for ``Scores.aside``; the last one's
            value is attention's.
    """

    scores: Scores
    product: Product
    dropout_p: float
    nodes: tuple[fx.Node, ...]


def read_attention(softmax: fx.Node) -> Spelled | None:
    """The attention of which a node is the softmax, if it is one, of which nobody else reads scores or weights."""
    of = _over_keys(softmax) if _word(softmax) == "softmax" else None
    scores = None if of is None else _scores(of, softmax, _LONGEST)
    weighing = None if scores is None else _weighing(softmax)
    if scores is None or weighing is None:
        return None
    product, after, dropout_p = weighing
    nodes = (*scores.chain, softmax, *after)
    within = {*nodes, *scores.aside}
    if any(user not in within for node in within - {nodes[-1]} for user in node.users):
        return None
    if not all(map(torch_private.is_fake, tensors_of(nodes))):  # of a transform of torch.func, or a tensor of another class
        return None
    return None if _written_meanwhile(nodes) else Spelled(scores, product, dropout_p, nodes)


def tensors_of(chain: Sequence[fx.Node]) -> list[torch.Tensor]:
    """What nodes read and make."""
    values = [value_of(x) for node in chain for x in (*node.all_input_nodes, node)]
    return [value for value in values if isinstance(value, torch.Tensor)]


def widened_from(node: Any) -> torch.dtype | None:
    """The dtype of numbers to which a node, or one that it moves, gives another dtype, which has all of their digits; None
    where it does not."""
    while _word(node) in (*_MOVES, *_CASTS) and isinstance(_first(node), fx.Node):
        before, after = value_of(_first(node)).dtype, value_of(node).dtype
        if before != after:
            widens = _word(node) in _CASTS and _only_casts(node) and torch.promote_types(before, after) == after
            return before if widens else None
        node = _first(node)
    return None


def _written_meanwhile(chain: Sequence[fx.Node]) -> bool:
    """Whether anything else is written between the first of these nodes and the last that might be one of the operands, which
    are read at the last only."""
    first, *_, last = chain
    own, read, node = set(chain), set(map(torch_private.storage_key, tensors_of(chain))), first
    while node is not last:
        if node not in own and writes(node) and not read.isdisjoint(map(torch_private.storage_key, tensors_of((node,)))):
            return True
        node = node.next
    return False


# From the softmax back to the first product


def _over_keys(softmax: fx.Node) -> fx.Node | None:
    """What a softmax over the last dimension is of; None where it is over another."""
    value, given = value_of(softmax), _first(softmax)
    if not isinstance(value, torch.Tensor) or not value.dim() or not isinstance(given, fx.Node):
        return None
    dim = softmax.args[1] if len(softmax.args) > 1 else softmax.kwargs.get("dim")
    return given if dim in (-1, value.dim() - 1) else None


def _word(node: fx.Node) -> str:
    return word_of(node) if is_torchs(node) else ""


def _first(node: fx.Node) -> Any:
    return node.args[0] if node.args else node.kwargs.get("input")


def _scores(node: fx.Node, reader: fx.Node, left: int) -> Scores | None:
    """What ``reader`` reads at a node which nobody else reads but for its dtype or what is largest, and others only write to
    before; None where it is not known, or ``left`` nodes do not say it."""
    if not left:
        return None
    beside = {each for user in node.users for each in _largest(user, node)}
    beside |= {user for user in node.users if _word(user) == "type_as" and _first(user) is not node}
    *writers, last = (user for user in node.users if user is reader or user not in beside)
    if last is not reader or any(each.users or not writes(each) or _first(each) is not node for each in writers):
        return None
    found = _made(node, left - 1)
    for each in writers:
        found = None if found is None else _changed(found, each, node)
    return found


def _made(node: fx.Node, left: int) -> Scores | None:
    if not isinstance(value_of(node), torch.Tensor) or not value_of(node).dtype.is_floating_point:
        return None
    product = _product(node)
    if product is not None:
        product = product if product.order is None else _turned(node)
        straight = product is not None and product.order is None
        return Scores(product.left, product.right, 1.0, (), (node,), node) if product is not None and straight else None
    if _word(node) == "baddbmm":
        return _with_sum(node)
    for operand in node.all_input_nodes:
        scores = _scores(operand, node, left) if _same_shape(operand, node) or _regroups(node, operand) else None
        changed = None if scores is None else _changed(scores, node, operand)
        if changed is not None:
            return changed
    return None


def _changed(scores: Scores, node: fx.Node, operand: fx.Node) -> Scores | None:
    """What becomes of scores, the ``operand`` of a node."""
    word, given = _word(node), node.args
    rest = [each for each in given if each is not operand]
    first = bool(given) and given[0] is operand
    scale, steps, cap = scores.scale, scores.steps, scores.cap
    if not first and writes(node):  # to what others may read
        return None
    if _regroups(node, operand):
        return replace(scores, chain=(*scores.chain, node), at=node)
    if largest := _largest(node, operand):
        return replace(scores, chain=(*scores.chain, node), aside=(*scores.aside, *largest))
    if word in _CASTS:
        if not first or not _only_casts(node):
            return None
    elif node.kwargs:
        return None
    elif word == "tanh":
        if steps or cap is not None or len(given) != 1:
            return None
        cap = 1.0
    elif len(given) == 2 and len(rest) == 1 and (word in _TIMES or (word in _OVER and first)):
        number = _number(rest[0])
        if number is None and not steps and cap is None and _scales_rows(rest[0], scores):
            name = "divisors" if word in _OVER else "factors"
            return replace(scores, chain=(*scores.chain, node), **{name: (*getattr(scores, name), rest[0])})  # type: ignore[arg-type]
        if not number:
            return None
        number = 1 / number if word in _OVER else number
        scale, cap = (scale * number, None) if cap is None else (scale, cap * number)
        steps = tuple(_scaled(step, number, value_of(node).dtype) for step in steps)
        if any(step.condition is not None and step.added > _LEAST for step in steps):
            return None
    elif len(given) == 2 and len(rest) == 1 and (word == "add" or (word in _LESS and first)):
        mask = value_of(rest[0])
        if not isinstance(mask, torch.Tensor) or not mask.dtype.is_floating_point:
            return None
        steps += (Step(rest[0], scores.at, times=1.0 if word == "add" else -1.0),)
    elif len(given) == 3 and len(rest) == 2 and word in ("where", "masked_fill"):
        of_tensor = node.op == "call_method" or word == "masked_fill"
        condition, stays, other = (given[1], given[0], given[2]) if of_tensor else given
        hides = word == "masked_fill" or operand is other
        number, mask = _number(stays if operand is other else other), value_of(condition)
        if operand is condition or number is None or number > _LEAST or not isinstance(mask, torch.Tensor):
            return None
        if mask.dtype != torch.bool:
            return None
        steps += (Step(_held(number, value_of(node).dtype), scores.at, condition, hides),)  # type: ignore[arg-type]
    else:
        return None
    return replace(scores, scale=scale, steps=steps, cap=cap, chain=(*scores.chain, node))


def _scales_rows(given: Any, scores: Scores) -> bool:
    """Whether scores that are multiplied by it are those of queries that are."""
    value = value_of(given)
    if not isinstance(value, torch.Tensor):
        return isinstance(value, torch.SymFloat | torch.SymInt)
    single = not value.dim() or torch_private.surely_equal(value.shape[-1], 1)
    return single and value.dtype.is_floating_point and scores.at is scores.chain[0]


def _largest(node: fx.Node, operand: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes by which a node subtracts from scores the largest of each row, without which weights are the same."""
    if _word(node) not in _LESS or len(node.args) != 2 or node.kwargs or node.args[0] is not operand:
        return ()
    nodes, found = list[fx.Node](), node.args[1]
    while isinstance(found, fx.Node):
        nodes.append(found)
        if _word(found) in ("amax", "max") and _first(found) is operand:
            given = dict(zip(("input", "dim", "keepdim"), found.args, strict=False)) | found.kwargs
            last = value_of(operand).dim() - 1
            return tuple(nodes) if given.get("dim") in (-1, last, (-1,), (last,)) and given.get("keepdim") is True else ()
        if _word(found) != "detach" and (_word(found) not in ("getitem", "getattr") or found.args[1] not in (0, "values")):
            return ()
        found = _first(found)
    return ()


def _scaled(step: Step, number: float, dtype: torch.dtype) -> Step:
    if step.condition is None:
        return step._replace(times=step.times * number)
    return step._replace(added=_held(step.added * number, dtype))


def _held(number: float, dtype: torch.dtype) -> float:
    """A number that hides, as scores of a dtype hold it."""
    return -math.inf if number < torch.finfo(dtype).min else number


def _regroups(node: fx.Node, operand: fx.Node) -> bool:
    """Whether a node is a view of its operand with the same matrices, whose batches and heads are grouped otherwise."""
    a, b = value_of(operand), value_of(node)
    if _word(node) not in _VIEWS or node.kwargs or not isinstance(a, torch.Tensor) or node.args[0] is not operand:
        return False
    return min(a.dim(), b.dim()) > 1 and all(map(torch_private.surely_equal, a.shape[-2:], b.shape[-2:]))


def _with_sum(node: fx.Node) -> Scores | None:
    """``baddbmm``: ``beta * input + alpha * left @ right``."""
    given = dict(zip(("input", "batch1", "batch2"), node.args, strict=False)) | node.kwargs
    if not {"input", "batch1", "batch2"} <= set(given) <= {"input", "batch1", "batch2", "beta", "alpha"}:
        return None
    if len(node.args) > 3 or writes(node):
        return None
    added, left, right = operands = [given[name] for name in ("input", "batch1", "batch2")]
    beta, alpha = (_number(given.get(name, 1)) for name in ("beta", "alpha"))
    if beta is None or not alpha or not all(isinstance(value_of(x), torch.Tensor) for x in operands):
        return None
    steps = (Step(added, node, times=beta),) if beta else ()
    return Scores(Factor(left), Factor(right), alpha, steps, (node,), node)  # type: ignore[arg-type]


def _only_casts(node: fx.Node) -> bool:
    """Whether a node gives its operand, of floating point, another floating dtype, and nothing else."""
    before, after = value_of(_first(node)), value_of(node)
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if not (before.dtype.is_floating_point and after.dtype.is_floating_point):
        return False
    return before.device == after.device and before.stride() == after.stride() and "memory_format" not in node.kwargs


def _same_shape(one: fx.Node, other: fx.Node) -> bool:
    a, b = value_of(one), value_of(other)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.dim() != b.dim():
        return False
    return all(torch_private.surely_equal(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def _number(given: Any) -> float | None:
    """A number, or that of which a program makes a tensor without dimensions."""
    value = value_of(given)
    if isinstance(value, torch.Tensor) and value.dim() == 0 and not any(writes(x) and _first(x) is given for x in given.users):
        at = {"full": 1, "tensor": 0, "scalar_tensor": 0}.get(_word(given), len(given.args))
        given = _number(given.args[at]) if at < len(given.args) else None
        with torch_private.real_tensors():
            return None if given is None else float(torch.tensor(given, dtype=value.dtype))
    return float(given) if isinstance(given, int | float) and not isinstance(given, bool) else None


# From the softmax on to the second product


def _weighing(softmax: fx.Node) -> tuple[Product, tuple[fx.Node, ...], float] | None:
    """The product of weights and values, the nodes up to it, and the probability with which weights are dropped."""
    node, after, dropout_p, sideways = softmax, list[fx.Node](), 0.0, False
    while len(node.users) == 1:
        (user,) = node.users
        after.append(user)
        word = _word(user)
        product = _product(user)
        if product is not None:
            if sideways:
                product = _transposed(product)
            elif product.left.node is not node:
                product = _turned(user)
            fits = product is not None and product.left.node is node and product.right.node is not node
            return (product, tuple(after), dropout_p) if product is not None and fits and _plain(product.left) else None
        if word == "dropout" and not dropout_p:
            chance = _dropped(user)
            if chance is None or _first(user) is not node:
                return None
            dropout_p = chance
        elif _swaps_last(user, node):
            sideways = not sideways
        elif _regroups(user, node):
            pass
        elif word not in (*_CASTS, "contiguous") or (word in _CASTS and not _only_casts(user)) or _first(user) is not node:
            return None
        node = user
    return None


def _swaps_last(node: fx.Node, operand: fx.Node) -> bool:
    """Whether a node makes rows of its operand columns."""
    word, dims, given = _word(node), value_of(operand).dim(), node.args[1:]
    if node.kwargs or not given or node.args[0] is not operand:
        return False
    if node.target is getattr:
        return given[0] == "mT" or (given[0] == "T" and dims == 2)
    if word not in ("transpose", "swapaxes", "swapdims", "permute"):
        return False
    order = given[0] if isinstance(given[0], list | tuple) else given
    if not all(isinstance(d, int) for d in order):
        return False
    places = [int(d) % dims for d in order]  # type: ignore[arg-type]
    last = [dims - 1, dims - 2]
    return places == [*range(dims - 2), *last] if word == "permute" else sorted(places) == sorted(last)


def _transposed(product: Product) -> Product | None:
    """``a @ weights.T`` as ``(weights @ a.T).T``."""
    dims = value_of(product.left.node).dim()
    swapped = (*range(dims - 2), dims - 1, dims - 2)
    if not (product.left.order is product.right.order is product.order is None):
        return None
    return Product(product.right, Factor(product.left.node, swapped), swapped)


def _plain(factor: Factor) -> bool:
    return factor.order is None or factor.order == tuple(range(len(factor.order)))


def _dropped(node: fx.Node) -> float | None:
    """The probability of ``dropout``: 0 where it does nothing, None where it is not known."""
    given = dict(zip(("input", "p", "training"), node.args, strict=False)) | dict(node.kwargs)
    given["training"] = given.get("training", given.pop("train", True))
    p, training = given.get("p", 0.5), given["training"]
    if not isinstance(training, bool) or not isinstance(p, int | float):
        return None
    return float(p) if training else 0.0


# Products


def _product(node: fx.Node) -> Product | None:
    """What a node multiplies, if it is a product of matrices."""
    word = _word(node)
    if word in _PRODUCTS and len(node.args) == 2 and not node.kwargs:
        left, right = node.args
        if all(isinstance(value_of(x), torch.Tensor) and value_of(x).dim() > 1 for x in (left, right)):
            return Product(Factor(left), Factor(right))  # type: ignore[arg-type]
    return _summed(node, turned=False) if word == "einsum" else None


def _turned(node: fx.Node) -> Product | None:
    """The same where the operands of ``einsum`` change places."""
    return _summed(node, turned=True) if _word(node) == "einsum" else None


def _summed(node: fx.Node, *, turned: bool) -> Product | None:
    """``einsum`` of two operands, as a product of matrices: one letter is summed over, and one is each operand's own. More are
    the left one's where one head of the right serves all."""
    if len(node.args) < 2 or not isinstance(node.args[0], str) or node.kwargs:
        return None
    rest = node.args[1] if isinstance(node.args[1], list | tuple) else node.args[1:]
    said = node.args[0].replace(" ", "")
    inputs, arrow, out = said.partition("->")
    terms = inputs.split(",")
    if not arrow or len(terms) != 2 or len(rest) != 2 or not (inputs.replace(",", "") + out).isalpha():
        return None
    if not all(isinstance(value_of(x), torch.Tensor) for x in rest):
        return None
    (one, other), (left, right) = (terms[::-1], rest[::-1]) if turned else (terms, rest)
    if any(len(set(letters)) != len(letters) for letters in (one, other, out)) or len(out) != len(one):
        return None
    summed = [letter for letter in one if letter in other and letter not in out]
    own = [letter for letter in one if letter not in other]
    others = [letter for letter in other if letter not in one]
    shared, own = own[:-1], own[-1:]
    lead = [letter for letter in out if letter in shared or (letter in one and letter in other)]
    if [len(letters) for letters in (summed, own, others)] != [1, 1, 1] or set(out) != {*lead, *own, *others}:
        return None
    return Product(
        Factor(left, tuple(map(one.index, (*lead, *own, *summed)))),  # type: ignore[arg-type]
        Factor(right, tuple(other.index(x) if x in other else None for x in (*lead, *summed, *others))),  # type: ignore[arg-type]
        None if list(out) == [*lead, *own, *others] else tuple(map([*lead, *own, *others].index, out)),
    )
