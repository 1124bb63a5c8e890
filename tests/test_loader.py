"""Discovery, loading and options: every mistake is one error that names the culprit and the mend, and hides nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import vendor_sdk
from vendor_sdk import Backend, Decline, Device, Kernel, NodeContext, Option, Supported, TorchDevice, errors, hookimpl
from vendor_sdk.contract import discovery, loader
from vendor_sdk.prims.opset import COMPOSITES, OPSET

PLUGIN = """
import torch, vendor_sdk

@vendor_sdk.hookimpl
def backend():
    return vendor_sdk.Backend(name="{name}", version="2.5", dtypes=frozenset({{torch.float32}}))
"""


class Chip:
    """A correct plugin; tests break subclasses of it."""

    fields: ClassVar[dict[str, Any]] = {}

    @hookimpl
    def backend(self) -> Any:
        return Backend(**{"name": "testchip", "version": "1.0", "dtypes": frozenset({torch.float32}), **self.fields})


def refusal(plugin: object, error: type[Exception] = errors.ContractError, **keywords: Any) -> str:
    """What ``register`` says when it refuses ``plugin``."""
    with pytest.raises(error) as caught:
        vendor_sdk.register(plugin, **keywords)
    assert not loader.known("testchip"), "a refused plugin must not stay registered"
    return str(caught.value)


def chip(**hooks: Any) -> object:
    """A plugin with more hooks, each a plain function."""
    return type("Chip", (Chip,), {name: staticmethod(hookimpl(function)) for name, function in hooks.items()})()


# Discovery


def test_installed_backend_is_found_and_loaded_once(install: Any) -> None:
    install("acme-chip", {"acme": "acme_plugin"}, modules={"acme_plugin": PLUGIN.format(name="acme")})
    loaded = vendor_sdk.load("acme")
    assert (loaded.backend.name, loaded.backend.version, loaded.distribution) == ("acme", "2.5", "acme-chip 1.0")
    assert vendor_sdk.load("acme") is loaded


def test_discovery_reads_metadata_and_imports_no_plugin(install: Any) -> None:
    install("acme-chip", {"acme": "acme_plugin"}, modules={"acme_plugin": "raise AssertionError('imported')"})
    (offer,) = discovery.installed().named("acme")
    assert (offer.plugin, offer.distribution, offer.hint) == ("acme_plugin", "acme-chip 1.0", "")
    assert "acme_plugin" not in sys.modules


def test_importing_the_sdk_and_listing_metadata_imports_no_torch() -> None:
    program = "import sys, vendor_sdk.cli; from vendor_sdk.contract import discovery, probe; discovery.installed(); "
    subprocess.run([sys.executable, "-c", program + "sys.exit('torch' in sys.modules)"], check=True, timeout=60)


def test_unknown_name_suggests_the_nearest_and_lists_all(install: Any) -> None:
    install("acme-chip", {"acme": "acme_plugin"})
    with pytest.raises(errors.BackendNotFoundError, match=r"no backend named 'acne'.*did you mean 'acme'") as caught:
        vendor_sdk.load("acne")
    assert "acme" in str(caught.value).split("known backends:")[1]


def test_name_offered_twice_names_both_distributions_and_hides_no_other(install: Any) -> None:
    install(
        "acme-chip", {"acme": "acme_plugin", "other": "other_plugin"}, modules={"other_plugin": PLUGIN.format(name="other")}
    )
    install("acme-fork", {"acme": "fork_plugin"})
    with pytest.raises(errors.BackendNameCollisionError) as caught:
        vendor_sdk.load("acme")
    for part in ("acme-chip 1.0", "acme-fork 1.0", "acme_plugin", "fork_plugin", "pip uninstall"):
        assert part in str(caught.value)
    assert vendor_sdk.load("other").backend.name == "other"


@pytest.mark.parametrize("folder", ["acme_chip-1.0.dist-info", "acme_chip.egg-info", "Acme.Chip-1.0-py3.11.egg-info"])
def test_second_copy_of_one_distribution_is_no_collision(install: Any, folder: str, tmp_path: Any, monkeypatch: Any) -> None:
    root = install("acme-chip", {"acme": "acme_plugin"})
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / folder).symlink_to(root / "acme_chip-1.0.dist-info")
    monkeypatch.syspath_prepend(str(copy))
    assert len(discovery.installed().named("acme")) == 1


def test_unreadable_metadata_is_reported_and_hides_no_backend(install: Any) -> None:
    install("acme-chip", {"acme": "acme_plugin"})
    broken = install("broken-chip", {})
    (broken / "broken_chip-1.0.dist-info" / "entry_points.txt").write_text(f"[{discovery.GROUP}]\nno equals sign\n")
    installed = discovery.installed()
    assert "acme" in installed.names
    assert [each.distribution for each in installed.unreadable] == ["broken-chip 1.0"]


def test_plugin_that_raises_at_import_is_named_with_its_exception(install: Any) -> None:
    install("acme-chip", {"acme": "acme_plugin"}, modules={"acme_plugin": "import no_such_driver"})
    with pytest.raises(
        errors.PluginLoadError, match=r"importing acme_plugin of acme-chip 1\.0 raised.*no_such_driver"
    ) as caught:
        vendor_sdk.load("acme")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_entry_point_to_a_missing_object_is_a_load_error(install: Any) -> None:
    install("acme-chip", {"acme": "acme_plugin:plugin"}, modules={"acme_plugin": ""})
    with pytest.raises(errors.PluginLoadError, match=r"acme_plugin:plugin.*AttributeError"):
        vendor_sdk.load("acme")


def test_name_of_the_entry_point_and_of_the_backend_must_agree(install: Any) -> None:
    install("acme-chip", {"acme": "acme_plugin"}, modules={"acme_plugin": PLUGIN.format(name="acme2")})
    with pytest.raises(errors.ContractError, match="says its name is 'acme2', but it is offered as 'acme'"):
        vendor_sdk.load("acme")


def test_torchs_own_names_are_refused(install: Any) -> None:
    install("acme-chip", {"inductor": "acme_plugin"}, modules={"acme_plugin": PLUGIN.format(name="inductor")})
    with pytest.raises(errors.PluginLoadError, match=r"acme-chip 1\.0: the name 'inductor' belongs to a backend of torch"):
        vendor_sdk.load("inductor")


def test_list_of_torchs_own_names_is_complete() -> None:
    program = "import torch._dynamo as d; print(*d.list_backends(exclude_tags=()))"
    listed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    installed_elsewhere = {point.name for point in discovery.metadata.entry_points(group=discovery.DYNAMO_GROUP)}
    assert set(listed.stdout.split()) - installed_elsewhere <= discovery.TORCH_BACKENDS


def test_missing_or_foreign_dynamo_line_is_a_hint(install: Any) -> None:
    install("acme-chip", {"acme": "acme_plugin"}, dynamo={})
    install("zeta-chip", {"zeta": "zeta_plugin"}, dynamo={"zeta": "zeta_plugin:compile"})
    installed = discovery.installed()
    assert 'acme = "vendor_sdk.dynamo:acme"' in installed.named("acme")[0].hint
    assert "resolves to zeta_plugin:compile" in installed.named("zeta")[0].hint


def test_threads_share_one_load(install: Any) -> None:
    text = PLUGIN.format(name="acme") + "\nimport time; time.sleep(0.05)\n"
    install("acme-chip", {"acme": "acme_plugin"}, modules={"acme_plugin": text})
    results: list[object] = []
    threads = [threading.Thread(target=lambda: results.append(vendor_sdk.load("acme"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(map(id, results))) == 1


# Registering in process


def test_registered_plugin_is_loaded_and_known_to_torch(register: Any) -> None:
    register(Chip())
    assert vendor_sdk.load("testchip").distribution == "registered in process"
    assert "testchip" in torch._dynamo.list_backends()


def test_name_can_be_taken_again_after_unregister(register: Any) -> None:
    vendor_sdk.register(Chip())
    vendor_sdk.unregister("testchip")
    with pytest.raises(errors.BackendNotFoundError):
        vendor_sdk.load("testchip")
    register(chip(fingerprint=lambda: "second"))
    assert vendor_sdk.load("testchip").fingerprint.startswith("second")


def test_taken_names_are_refused(register: Any, install: Any) -> None:
    register(Chip())
    with pytest.raises(errors.BackendNameCollisionError, match="taken by a plugin registered in this process"):
        vendor_sdk.register(Chip())
    install("acme-chip", {"acme": "acme_plugin"})
    with pytest.raises(errors.BackendNameCollisionError, match=r"taken by acme-chip 1\.0"):
        vendor_sdk.register(type("Acme", (Chip,), {"fields": {"name": "acme"}})())
    with pytest.raises(errors.BackendNameCollisionError, match="taken by torch"):
        vendor_sdk.register(type("Eager", (Chip,), {"fields": {"name": "eager"}})())


def test_register_under_another_name_than_the_backends_is_refused() -> None:
    assert "'testchip', but it is offered as 'otherchip'" in refusal(Chip(), name="otherchip")


def test_unregister_of_an_unknown_name_says_what_is_registered(register: Any) -> None:
    register(Chip())
    with pytest.raises(errors.BackendNotFoundError, match="did you mean 'testchip'"):
        vendor_sdk.unregister("testchp")


def test_extension_comes_before_the_backend(register: Any) -> None:
    class Extension:
        @hookimpl
        def kernels(self) -> Any:
            return {"add": torch.sub}

        @hookimpl
        def supports(self, node: NodeContext) -> Any:
            return Decline("not today") if node.prim == "mul" else None

    register(chip(kernels=lambda: {"add": torch.add, "mul": torch.mul}))
    before = vendor_sdk.load("testchip")
    vendor_sdk.extend("testchip", Extension())
    after = vendor_sdk.load("testchip")
    assert (before.kernels["add"].call, after.kernels["add"].call) == (torch.add, torch.sub)
    assert after.kernels["mul"].call is torch.mul
    assert after.supports(node("mul")) == Decline("not today")
    assert after.supports(node("add")) == Supported()
    assert before.fingerprint != after.fingerprint, "the compile cache must tell them apart"


def test_extension_that_is_refused_leaves_the_backend_as_it_was(register: Any) -> None:
    class Extension:
        @hookimpl
        def kernels(self) -> Any:
            return {"ad": torch.add}

    register(Chip())
    before = vendor_sdk.load("testchip")
    with pytest.raises(errors.ContractError, match=r"'ad' \(did you mean 'add'\?\)"):
        vendor_sdk.extend("testchip", Extension())
    assert vendor_sdk.load("testchip") is before


# What a plugin can get wrong


def test_misspelled_hook_is_refused_with_the_nearest_name() -> None:
    def table() -> Any:
        return {}

    message = refusal(chip(kernel=table, zzz=table))
    assert "implements hooks that do not exist: 'kernel' (did you mean 'kernels'?), 'zzz'\n" in message


def test_hook_without_its_mark_is_refused() -> None:
    class Unmarked(Chip):
        def kernels(self) -> Any:
            return {}

    assert "not marked as such: kernels" in refusal(Unmarked())


def test_function_that_a_module_merely_imports_needs_no_mark(register: Any) -> None:
    module = ModuleType("test_loader_module")
    exec(PLUGIN.format(name="testchip"), module.__dict__)
    module.kernels = dict.fromkeys  # type: ignore[attr-defined]
    register(module)


def test_unknown_argument_of_a_hook_is_refused() -> None:
    assert "'optons'" in refusal(chip(emitter=lambda optons: None))


def test_missing_required_hook_is_refused() -> None:
    class Empty:
        @hookimpl
        def kernels(self) -> Any:
            return {}

    assert "does not implement the required hook 'backend'" in refusal(Empty())


def test_unknown_prims_are_listed_at_once() -> None:
    message = refusal(chip(kernels=lambda: {"ad": torch.add, "mull": torch.mul}))
    assert "'ad'" in message
    assert "'mull'" in message
    message = refusal(chip(decompositions=lambda: {"qqqq": torch.add, "wwww": torch.mul}))
    assert "'qqqq'" in message
    assert "'wwww'" in message
    assert "'zzzz'" in refusal(type("Claims", (Chip,), {"fields": {"composites": frozenset({"zzzz"})}})())


@pytest.mark.parametrize(
    ("hook", "answer", "complaint"),
    [
        ("backend", lambda: "testchip", "returned 'testchip', of type str"),
        ("kernels", lambda: [torch.add], "of type list"),
        ("kernels", lambda: {"add": 3}, "'add': 3, of type int"),
        ("decompositions", lambda: {"add": None}, "'add': nothing"),
        ("fingerprint", lambda: 3, "returned 3, of type int"),
        ("conformance", lambda: {"add[float32]": ""}, "add[float32]"),
        ("graph_passes", lambda: [3], "3, of type int"),
        ("graph_passes", lambda: "abc", "returned 'abc', of type str"),
    ],
)
def test_wrong_type_is_refused_at_load(hook: str, answer: Any, complaint: str) -> None:
    message = refusal(chip(**{hook: answer}))
    assert f"hook {hook!r}" in message
    assert complaint in message


@pytest.mark.parametrize("hook", ["device", "emitter", "graph_compiler"])
def test_wrong_type_is_refused_when_a_session_is_made(register: Any, hook: str) -> None:
    register(chip(**{hook: lambda: 3}))
    with pytest.raises(errors.ContractError, match=f"hook '{hook}' .* returned 3, of type int"):
        vendor_sdk.load("testchip").session({})


def test_decline_must_give_a_reason(register: Any) -> None:
    register(chip(supports=lambda: Decline(" ")))
    with pytest.raises(errors.ContractError, match="declined 'add' without a reason"):
        vendor_sdk.load("testchip").supports(node("add"))


def test_hook_that_raises_is_named_with_its_exception() -> None:
    def kernels() -> Any:
        raise RuntimeError("driver gone")

    with pytest.raises(errors.ContractError, match=r"hook 'kernels' \(.*Chip\) raised RuntimeError: driver gone") as caught:
        vendor_sdk.register(chip(kernels=kernels))
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": "my-chip"}, "name='my-chip'"),
        ({"version": ""}, "version=''"),
        ({"dtypes": frozenset()}, "dtypes="),
        ({"dtypes": {"float32"}}, "dtypes="),
        ({"contract": "1.0"}, "contract='1.0'"),
        ({"options": {"speed": 3}}, "options="),
    ],
)
def test_ill_typed_field_of_backend_is_refused(fields: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(type("Ill", (Chip,), {"fields": fields})())


@pytest.mark.parametrize(
    ("fields", "mend"),
    [
        ({"contract": (2, 0)}, "Upgrade vendor-sdk"),
        ({"contract": (1, 99)}, "Upgrade vendor-sdk"),
        ({"contract": (0, 9)}, "Upgrade the plugin"),
        ({"opset": 2}, "Upgrade vendor-sdk"),
        ({"opset": 0}, "Upgrade the plugin"),
    ],
)
def test_versions_are_negotiated(fields: dict[str, Any], mend: str) -> None:
    message = refusal(type("Old", (Chip,), {"fields": fields})(), errors.VersionMismatchError)
    assert "testchip 1.0 was written for" in message
    assert mend in message


def test_machine_that_lacks_something_is_told_what() -> None:
    plugin = type("Needy", (Chip,), {"fields": {"requires": lambda: "no compiler on PATH: install g++"}})()
    assert "testchip: this machine lacks what the backend needs: no compiler on PATH" in refusal(plugin, errors.PluginLoadError)


def test_option_of_the_sdk_cannot_be_redefined() -> None:
    fields = {"options": {"fallback": Option(default=1, help="mine")}}
    assert "options that the SDK has already: fallback" in refusal(type("Greedy", (Chip,), {"fields": fields})())


def test_kernel_for_a_composite_needs_the_claim() -> None:
    name = next(iter(COMPOSITES))
    assert f"does not claim: {name}" in refusal(chip(kernels=lambda: {name: torch.add}))


# Options and sessions


OPTIONS = {
    "tile": Option(default=16, help="tile size"),
    "scale": Option(default=1.0, help="scale"),
    "strict": Option(default=False, help="strictness"),
    "target": Option(default="a", help="target", choices=("a", "b")),
    "path": Option(default=None, help="anything"),
}


@pytest.fixture
def optional(register: Any) -> loader.LoadedBackend:
    return vendor_sdk.load(register(type("Optional", (Chip,), {"fields": {"options": OPTIONS}})()))


def test_options_are_completed_with_their_defaults(optional: loader.LoadedBackend) -> None:
    session = optional.session({"tile": 8, "scale": 2, "path": "x"})
    own = {"tile": 8, "scale": 2.0, "strict": False, "target": "a", "path": "x"}
    assert session.options == {"fallback": "host", "fuse": True, "keep": None, **own}
    assert type(session.options["scale"]) is float


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"tle": 8}, "unknown option 'tle'; did you mean 'tile'?"),
        ({"nonsense": 8}, "unknown option 'nonsense'\n"),
        ({"tile": "8"}, "must be of type int"),
        ({"tile": True}, "must be of type int"),
        ({"strict": 1}, "must be of type bool"),
        ({"scale": "1"}, "must be of type float"),
        ({"target": "c"}, "legal values: 'a', 'b'"),
        ({"fallback": "hots"}, "did you mean 'host'?"),
    ],
)
def test_wrong_options_are_refused(optional: loader.LoadedBackend, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(errors.OptionError) as caught:
        optional.session(given)
    assert str(caught.value).startswith("testchip: ")
    assert complaint in str(caught.value)


def test_sessions_are_made_once_for_each_set_of_options(register: Any) -> None:
    made: list[Any] = []

    def device(options: Any) -> TorchDevice:
        made.append(dict(options))
        return TorchDevice("cpu")

    register(chip(device=device))
    loaded = vendor_sdk.load("testchip")
    assert loaded.session() is loaded.session({"fallback": "host"})
    assert loaded.session({"fallback": "error"}) is not loaded.session()
    assert [options["fallback"] for options in made] == ["host", "error"]


def test_mode_is_refused_unless_declared(optional: loader.LoadedBackend) -> None:
    assert optional.with_mode({"tile": 8}, None) == {"tile": 8}
    assert optional.with_mode(None, "default") is None
    with pytest.raises(errors.OptionError, match="mode='max-autotune'"):
        optional.with_mode(None, "max-autotune")


def test_declared_mode_becomes_an_option(register: Any) -> None:
    fields = {"options": {"mode": Option(default="default", help="how hard to try", choices=("default", "fast"))}}
    loaded = vendor_sdk.load(register(type("Modal", (Chip,), {"fields": fields})()))
    assert loaded.session(loaded.with_mode(None, "fast")).options["mode"] == "fast"


# torch.compile's way in


def test_dynamo_entry_is_one_object_a_name(register: Any) -> None:
    from vendor_sdk import dynamo

    register(Chip())
    assert dynamo.testchip is dynamo.testchip
    with pytest.raises(AttributeError, match=r"no backend named 'testchp'.*did you mean 'testchip'"):
        _ = dynamo.testchp
    with pytest.raises(AttributeError):
        _ = dynamo.__wrapped__


def test_torch_finds_an_installed_backend_without_any_import(install: Any) -> None:
    kernel = "lambda x, y, *, alpha=1: torch.add(x, y, alpha=alpha)"
    plugin = PLUGIN.format(name="acme") + f"\n@vendor_sdk.hookimpl\ndef kernels():\n    return {{'add': {kernel}}}\n"
    install("acme-chip", {"acme": "acme_plugin"}, modules={"acme_plugin": plugin})
    program = "import torch; print(torch.compile(lambda x: x + x, backend='acme')(torch.ones(2)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "tensor([2., 2.])\n", done.stderr


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"options": {"falback": "host"}}, "unknown option 'falback'; did you mean 'fallback'?"),
        ({"mode": "max-autotune"}, "mode='max-autotune'"),
    ],
)
def test_wrong_options_stop_torch_compile(register: Any, keywords: dict[str, Any], complaint: str) -> None:
    register(Chip())
    with pytest.raises(BackendCompilerFailed) as caught:
        torch.compile(lambda x: x + 1, backend="testchip", **keywords)(torch.ones(2))
    assert complaint in str(caught.value)


def test_defaults_answer_for_a_plugin_that_says_nothing(register: Any) -> None:
    loaded = vendor_sdk.load(register(Chip()))
    session = loaded.session()
    assert session.device == TorchDevice("cpu")
    assert (session.emitter, session.graph_compiler) == (None, None)
    assert loaded.kernels == {}
    assert all(loaded.passes(stage) == () for stage in loader.STAGES)
    assert loaded.supports(node("add")) == Supported()
    for name, row in OPSET.items():
        # A view takes operands that lie otherwise than those of the trace.
        assert loaded.host_fallback(name) is (torch.ops.aten.reshape.default if name == "view" else row.target)
        if row.decomposition is not None:
            assert loaded.decompositions[name] is loaded.decomposition(row.target) is row.decomposition
    for composite in COMPOSITES.values():
        for target, decompose in composite.targets.items():
            assert loaded.decomposition(target) is decompose


def test_plain_callables_become_kernels(register: Any) -> None:
    kernel = Kernel(torch.mul, destination=True)
    loaded = vendor_sdk.load(register(chip(kernels=lambda: {"add": torch.add, "mul": kernel})))
    assert loaded.kernels["add"] == Kernel(torch.add)
    assert loaded.kernels["mul"] is kernel


def node(prim: str) -> NodeContext:
    return NodeContext(prim=prim, args=(), kwargs={}, outputs=(), backward=False)


def test_device_is_abstract() -> None:
    with pytest.raises(TypeError):
        Device()  # type: ignore[abstract]
