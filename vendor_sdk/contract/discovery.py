"""Which backends are installed, from distribution metadata alone: imports neither torch nor any plugin.

A vendor's ``pyproject.toml`` offers a backend with one line in each of two groups: ``vendor_sdk.backends`` names the plugin,
``torch_dynamo_backends`` lets ``torch.compile(backend="mychip")`` find it without an import.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import PurePath

from vendor_sdk.errors import BackendNameCollisionError, BackendNotFoundError, PluginLoadError

GROUP = "vendor_sdk.backends"
DYNAMO_GROUP = "torch_dynamo_backends"
DYNAMO_MODULE = "vendor_sdk.dynamo"

TORCH_BACKENDS = frozenset(
    {
        "aot_eager",
        "aot_eager_decomp_partition",
        "aot_eager_decomp_partition_crossref",
        "aot_eager_decomp_partition_with_mode",
        "aot_eager_default_partitioner",
        "aot_ts",
        "cudagraphs",
        "dynamo_accuracy_minifier_backend",
        "dynamo_minifier_backend",
        "eager",
        "eager_debug",
        "eager_noexcept",
        "inductor",
        "invoke_subgraph",
        "non_leaf_compile_error_TESTING_ONLY",
        "onnxrt",
        "openxla",
        "openxla_eval",
        "pre_dispatch_eager",
        "relu_accuracy_error_TESTING_ONLY",
        "relu_compile_error_TESTING_ONLY",
        "relu_runtime_error_TESTING_ONLY",
        "ts",
        "tvm",
    }
)
"""Names torch keeps for itself: it ignores, without a word, an entry point that has one of them."""


@dataclass(frozen=True)
class Offer:
    """A backend as an installed distribution declares it.

    Attributes:
        name: left of the ``=``: what users pass to ``torch.compile(backend=...)``.
        plugin: right of it: ``package.module`` or ``package.module:object``.
        distribution: name and version (``"mychip 1.2.0"``).
        dynamo: what the distribution's ``torch_dynamo_backends`` line of this name says, ``""`` when there is none.
    """

    name: str
    plugin: str
    distribution: str
    dynamo: str

    @property
    def hint(self) -> str:
        """What to mend in the distribution's metadata though the backend can be loaded, ``""`` when nothing."""
        wanted = f"{DYNAMO_MODULE}:{self.name}"
        if not self.dynamo:
            return (
                f'torch.compile(backend="{self.name}") will not find it: add {self.name} = "{wanted}" '
                f"under [project.entry-points.{DYNAMO_GROUP}]"
            )
        if self.dynamo != wanted:
            return f'torch.compile(backend="{self.name}") resolves to {self.dynamo}, not to "{wanted}"'
        return ""


@dataclass(frozen=True)
class Unreadable:
    """A distribution whose metadata cannot be read, and why; whatever it offers is unknown."""

    distribution: str
    reason: str


@dataclass(frozen=True)
class Installed:
    """All that is installed: offers sorted by name, and distributions that could not be read."""

    offers: tuple[Offer, ...]
    unreadable: tuple[Unreadable, ...]
    partnerless: tuple[Offer, ...] = ()
    """names that torch.compile finds and the SDK does not: a line in one group alone, without a plugin"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(offer.name for offer in self.offers))

    def named(self, name: str) -> tuple[Offer, ...]:
        """The offers of ``name``: none, one, or several that collide."""
        return tuple(offer for offer in self.offers if offer.name == name)


def installed() -> Installed:
    """Reads the metadata of every distribution on ``sys.path``; of two copies of one distribution the first counts."""
    offers: list[Offer] = []
    unreadable: list[Unreadable] = []
    partnerless: list[Offer] = []
    for distribution in _distributions():
        try:
            lines = [line for line in distribution.entry_points if line.group in (GROUP, DYNAMO_GROUP)]
            if not lines:
                continue
            label = _label(distribution)
            dynamo = {line.name: line.value for line in lines if line.group == DYNAMO_GROUP}
            mine = [Offer(line.name, line.value, label, dynamo.get(line.name, "")) for line in lines if line.group == GROUP]
            offers += mine
            partnerless += [
                Offer(name, "", label, value)
                for name, value in dynamo.items()
                if value.partition(":")[0] == DYNAMO_MODULE and name not in {offer.name for offer in mine}
            ]
        except Exception as error:  # whatever one distribution's files contain must not hide the others
            unreadable.append(Unreadable(_label(distribution), f"{type(error).__name__}: {error}"))
    offers.sort(key=lambda offer: (offer.name, offer.distribution))
    return Installed(tuple(offers), tuple(unreadable), tuple(partnerless))


def find(name: str, in_process: Iterable[str] = ()) -> Offer:
    """The one offer of ``name``.

    Raises:
        BackendNotFoundError: nothing installed has the name; lists what is (``in_process`` names included).
        BackendNameCollisionError: two distributions have it.
        PluginLoadError: torch keeps the name for a backend of its own.
    """
    everything = installed()
    offers = everything.named(name)
    if not offers:
        known = sorted({*everything.names, *in_process})
        raise BackendNotFoundError(
            f"no backend named {name!r} is installed or registered{suggestion(name, known)}",
            why=f"known backends: {', '.join(known) or 'none'}",
            fix=f"Install the distribution that offers it (entry-point group {GROUP!r}), or call vendor_sdk.register(plugin).",
        )
    if len(offers) > 1:
        raise BackendNameCollisionError(collision(offers), fix=f"Uninstall one of them: pip uninstall {_names(offers, ' | ')}")
    if name in TORCH_BACKENDS:
        raise PluginLoadError(
            f"{offers[0].distribution}: the name {name!r} belongs to a backend of torch itself",
            why="torch.compile silently prefers its own backend of that name.",
            fix="Rename the backend in the entry points and in Backend(name=...).",
        )
    return offers[0]


def refuse_unknown(name: str) -> None:
    """``find``, for commands that would import torch, which takes seconds, before they refuse a name themselves.

    Where torch is imported already, backends may be registered in this process too: the loader knows.
    """
    if "vendor_sdk.contract.loader" not in sys.modules:
        find(name)


def collision(offers: Iterable[Offer]) -> str:
    """One sentence naming every distribution that offers the name."""
    offers = tuple(offers)
    sources = " and ".join(f"{offer.distribution} ({offer.plugin})" for offer in offers)
    return f"the backend name {offers[0].name!r} is offered by {sources}"


def suggestion(name: str, known: Iterable[str], form: str = "; {}") -> str:
    """``"; did you mean 'add'?"`` for the nearest known name, ``""`` when none is near; ``form`` surrounds the question."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return form.format(f"did you mean {near[0]!r}?") if near else ""


def _names(offers: Iterable[Offer], separator: str) -> str:
    return separator.join(offer.distribution.rpartition(" ")[0] for offer in offers)


def _distributions() -> Iterator[metadata.Distribution]:
    """Every distribution once: an editable install is seen both in its source tree and in site-packages."""
    seen: set[str] = set()
    for distribution in metadata.distributions():
        try:
            key = _folder(distribution) or _field(distribution, "Name")
        except Exception:
            key = repr(distribution)
        key = re.sub(r"[-_.]+", "_", key).lower()
        if key not in seen:
            seen.add(key)
            yield distribution


def _label(distribution: metadata.Distribution) -> str:
    try:
        return f"{_field(distribution, 'Name')} {_field(distribution, 'Version')}"
    except Exception:
        return repr(distribution)


def _folder(distribution: metadata.Distribution) -> str:
    """The name as the folder of the metadata has it: reading a file of every distribution takes longer than all the rest."""
    folder = getattr(distribution, "_path", None)
    return "" if folder is None else PurePath(str(folder)).stem.partition("-")[0]


def _field(distribution: metadata.Distribution, name: str) -> str:
    """A field of the metadata; ``Distribution.metadata`` parses every README that stands below the fields (0.1 s in all)."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    found = re.search(rf"^{name}:[ \t]*(\S+)", text.partition("\n\n")[0], re.MULTILINE)
    return found[1] if found else str(distribution.metadata[name])
