"""What each statement and each loop-level operation is in the chip's assembly: the emitter's capability list."""

import torch

TYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bool: "b8", torch.uint8: "u8",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
}  # fmt: skip

SAME = """
    add sub mul div neg abs floor ceil trunc round sqrt pow max min fmax fmin copysign nextafter mod fmod gcd isnan signbit
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh hypot
    eq ne lt le gt ge shl shr erf erfc erfinv erfcx ndtri digamma zeta igamma igammac i0 i0e i1 i1e
"""
RENAMED = """
    floordiv=quot where=select bitand=and bitor=or bitxor=xor bitnot=not wrap_index=bound philox=random frexp_mantissa=mantissa
    frexp_exponent=exponent
"""

OPS = {
    "const": "{to} = set.{R} {value}",
    "move": "{to} = move.{R} {0}",
    "load": "{to} = load.{R} {param}, {index}",
    "load.masked": "{to} = load.{R} {param}, {index}, {mask}, {other}",
    "store": "store.{T} {param}, {index}, {0}",
    "store.masked": "{store}, {mask}",
    "loop": "{var} = loop {size}",
    "end": "end",
    **{name: f"{{to}} = {name}.{{T}} {{args}}" for name in SAME.split()},
    **{name: f"{{to}} = {code}.{{T}} {{args}}" for name, _, code in (pair.partition("=") for pair in RENAMED.split())},
    "convert": "{to} = convert.{R}.{T} {0}",
    "bitcast": "{to} = bits.{R}.{T} {0}",
    "isinf": "{to}a = abs.{T} {0}\n{to} = eq.{T} {to}a, inf",
    "rsqrt": "{to}a = sqrt.{T} {0}\n{to} = div.{T} 1, {to}a",
    "truncdiv": "{to}a = div.{T} {0}, {1}\n{to} = trunc.{T} {to}a",
    "sign": "{to}a = eq.{T} {0}, {0}\n{to}b = sign.{T} {0}\n{to} = select.{T} {to}a, {to}b, 0",
    "sigmoid": "{to}a = neg.{T} {0}\n{to}b = exp.{T} {to}a\n{to}c = add.{T} {to}b, 1\n{to} = div.{T} 1, {to}c",
    "trigamma": "{to} = zeta.{T} 2, {0}",
    **{f"reduce.{op}": f"{{to}} = fold_{op}.{{T}} {{0}}, {{rank}}, {{start}}" for op in ("sum", "prod", "max", "min")},
    **{f"reduce.{op}": f"{{to}} = fold_{op}.{{T}} {{0}}, {{rank}}, {{start}}" for op in ("any", "all", "xor")},
    **{f"reduce.{op}": f"{{to}}, {{at}} = fold_{op}.{{T}} {{args}}, {{rank}}, {{start}}" for op in ("argmax", "argmin")},
    **{f"scan.{op}": f"{{to}} = running_{op}.{{T}} {{0}}" for op in ("sum", "prod", "max", "min", "logaddexp")},
    **{f"scan.{op}": f"{{to}}, {{at}} = running_{op}.{{T}} {{args}}" for op in ("argmax", "argmin")},
    **{f"store.{op}": f"store_{op}.{{T}} {{param}}, {{index}}, {{0}}" for op in ("add", "mul", "max", "min")},
    "nest": "",
    "contraction": "",
}
"""Texts as ``vendor_sdk.TableEmitter`` says."""
