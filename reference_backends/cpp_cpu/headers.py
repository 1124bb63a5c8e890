"""What a text needs of the headers: a compiler reads all that it is given, needed or not.

A header is cut into pieces: a declaration, a macro, a whole ``#if``. A piece is needed where one of the names that it declares
stands in the text, or in a piece that is needed; one that declares operators, which have no names, always is. All pieces that
declare a name come together and in their order, so a call finds the same overload as with the whole headers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"[A-Za-z_]\w*")
_REMARK = re.compile(r"//[^\n]*")
_QUOTED = re.compile(r'"[^"\n]*"')
_INSIDE = r"[^()\n]*(?:\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)[^()\n]*)*"
_ATTRIBUTE = re.compile(rf"__attribute__ *\(\({_INSIDE}\)\)|\[\[.*?\]\]|\balignas *\(\w*\)")
_ANGLES = re.compile(r"<[^<>]*>")
_DEFINE = re.compile(r"#\s*define\s+(\w+)(?:\(([^)]*)\))?((?:.*\\\n)*.*)")
_CALL = re.compile(r"\b([A-Z][A-Z_0-9]*)\(((?:[^()]|\([^()]*\))*)\)")
_DECLARED = (
    re.compile(r"\b(?:struct|class|union|enum)\s+(\w+)"),
    re.compile(r"\busing\s+(\w+)\s*="),
    re.compile(r"\btypedef\b.*?(\w+)\s*(?:\[\w*\])?\s*;"),
    re.compile(r"^[^=({]*?\b(\w+)\s*\("),  # a function
)
_CONSTANT = re.compile(r"\b(\w+)\s*(?:\[\w*\]\s*)*=[^=]")
_LISTED = re.compile(r"(\w+)\s*(?:=[^,}]*)?[,}]")
_NOT_DECLARED = frozenset({"class", "static_assert"})


@dataclass(frozen=True)
class Piece:
    """Lines of a header.

    Attributes:
        declares: names by which it is asked for.
        mentions: names in it.
        always: whether it is needed by any text.
    """

    text: str
    declares: frozenset[str]
    mentions: frozenset[str]
    always: bool


@dataclass(frozen=True)
class Header:
    """Pieces in order, and which of them declare a name."""

    pieces: Sequence[Piece]
    declaring: Mapping[str, Sequence[int]]


def library(name: str) -> str:
    """Text of one of the C++ files beside this one."""
    return (Path(__file__).parent / name).read_text()


def needed(names: Sequence[str], text: str) -> str:
    """What ``text`` needs of the headers of these names, which stand in that order."""
    headers = [pieces_of(name) for name in names]
    found = {(at, of) for at, header in enumerate(headers) for of, piece in enumerate(header.pieces) if piece.always}
    waiting, known = [_mentions(text), *(headers[at].pieces[of].mentions for at, of in found)], set[str]()
    while waiting:
        for name in waiting.pop() - known:
            known.add(name)
            more = [(at, of) for at, header in enumerate(headers) for of in header.declaring.get(name, ())]
            waiting += [headers[at].pieces[of].mentions for at, of in more if (at, of) not in found]
            found.update(more)
    return "\n".join(headers[at].pieces[of].text for at, of in sorted(found))


@functools.cache
def pieces_of(name: str) -> Header:
    """A header that lies beside this file."""
    pieces = [_piece(*both) for both in cut(library(name))]
    declaring: dict[str, list[int]] = {}
    for at, piece in enumerate(pieces):
        for each in piece.declares:
            declaring.setdefault(each, []).append(at)
    return Header(pieces, declaring)


def _piece(lines: Sequence[str], code: Sequence[str]) -> Piece:
    bare = "\n".join(code)
    declares = set(_LISTED.findall(bare[bare.index("{") :])) if bare.startswith("enum") else set[str]()
    mentions = set(_mentions(bare))
    always = False
    for line in _outermost(code):
        if line.startswith("#"):
            declares |= {*re.findall(r"^#\s*(?:define|undef)\s+(\w+)", line)}
            continue
        whole = [line]
        if _CALL.match(line):
            text = _expanded(line)
            mentions |= _mentions(text)
            whole = [*_outermost(map(str.strip, text.split("\n")))]
        for each in whole:
            found = _declared(each)
            declares |= found
            always |= "operator" in each or not found
    return Piece("\n".join(lines), frozenset(declares), frozenset(mentions), always or not declares)


def _mentions(code: str) -> frozenset[str]:
    return frozenset(_NAME.findall(code))


def cut(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The lines of each piece, as they are, and without remarks, quoted text and attributes.

    What has begun ends at the line that closes its brackets and its conditions, with a semicolon, a brace, or, of a macro's
    call, a parenthesis.

    Raises:
        ValueError: the text ends before that.
    """
    lines: list[str] = []
    code: list[str] = []
    brackets = conditions = 0
    for line, own in zip(text.split("\n"), map(str.rstrip, _bare(text).split("\n")), strict=True):
        if not lines and not own:
            continue
        lines.append(line)
        code.append(own)
        if own.startswith("#"):
            conditions += own.startswith("#if") - own.startswith("#endif")
        elif not code[0].startswith("#define"):
            brackets += own.count("(") + own.count("{") - own.count(")") - own.count("}")
        whole = own.endswith((";", "}")) or code[0].startswith("#") or bool(_CALL.match(code[0]))
        if whole and not brackets and not conditions and not own.endswith("\\"):
            yield lines, code
            lines, code = [], []
    if lines:
        raise ValueError(f"a header ends within {lines[0]!r}")


def _outermost(code: Iterable[str]) -> Iterator[str]:
    """Lines that begin outside of all braces, and of macros' bodies; what is a template behind its parameters."""
    depth, body, parameters = 0, False, ""
    for line in code:
        if not body:
            if not depth and line.startswith("template") and line.endswith(">"):
                parameters = line
            elif not depth and line and not line.startswith(("}", "#e", "#i")):
                yield f"{parameters} {line}".lstrip()
                parameters = ""
            if not line.startswith("#"):
                depth += line.count("{") - line.count("}")
        body = line.endswith("\\") and (body or line.startswith("#define"))


def _declared(line: str) -> set[str]:
    """Names that a line declares, of which it may only be the beginning."""
    flat = line
    while (shorter := _ANGLES.sub("", flat)) != flat:
        flat = shorter
    found = {name for pattern in _DECLARED for name in pattern.findall(flat)}
    if "(" not in flat.partition("=")[0]:
        found.update(_CONSTANT.findall(flat))
    return found - _NOT_DECLARED


@functools.cache
def _macros() -> dict[str, list[tuple[tuple[str, ...], str]]]:
    """Parameters and bodies of those of all headers, of which one calls those of others, by name: there may be several."""
    found: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for path in sorted(Path(__file__).parent.glob("*.h")):
        for name, parameters, body in _DEFINE.findall(path.read_text()):
            if parameters:
                found.setdefault(name, []).append((_split(parameters), _bare(body).replace("\\\n", "\n")))
    return found


def _split(arguments: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in arguments.split(","))


def _expanded(text: str) -> str:
    """Macros' calls replaced by what each of the macros of that name makes of them."""

    def made(call: re.Match[str]) -> str:
        arguments, bodies = _split(_expanded(call[2])), []
        for parameters, body in _macros().get(call[1], ()):
            given = dict(zip(parameters, arguments, strict=False))
            put = _NAME.sub(lambda name, given=given: given.get(name[0], name[0]), body)  # type: ignore[misc]
            bodies.append(_expanded(put.replace("##", "")))
        return "\n".join(bodies) or call[0]

    return _CALL.sub(made, text)


def _bare(text: str) -> str:
    """The same lines without remarks, quoted text and attributes."""
    return _ATTRIBUTE.sub("", _QUOTED.sub("", _REMARK.sub("", text)))
