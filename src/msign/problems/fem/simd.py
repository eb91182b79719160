"""A Numba type that holds the same number of several fields, one per lane.

Inside a compiled kernel a :class:`LanesType` value behaves like a number (``+ - *``, :func:`sqrt`,
:func:`fma`), but each operation is one vector instruction on ``LANES`` fields. A kernel written
with it reads like the textbook algorithm for one field, and the compiler keeps its local values in
vector registers.

Memory is addressed by a raw base address and an index that counts lane vectors: ``load(a, i)``
reads the ``LANES`` doubles at ``a + 8 * LANES * i``. Nothing checks bounds, and nothing keeps the
memory alive: the caller of a kernel owns the arrays (:func:`aligned` allocates them).
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.core.extending import intrinsic, models, register_model
from numba.core.imputils import lower_builtin
from numba.core.typing import signature
from numba.core.typing.templates import ConcreteTemplate, infer_global

from msign.problems.fem.compilation import kernel

LANES: int = 8 if binding.get_host_cpu_features().get("avx512f") else 4
"""Fields in a vector: as many doubles as one register of this machine holds."""

VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_INTEGER = ir.IntType(64)
_ALIGNMENT = 64


def vector_intrinsic(function: Callable) -> Any:
    """Numba's decorator, without its narrow type."""
    return intrinsic(function)


class LanesType(types.Type):
    """The Numba type of one number in each of ``LANES`` fields."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


_lanes = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, numba_type) -> None:  # type: ignore[no-untyped-def]
        super().__init__(manager, numba_type, VECTOR)


def _register(function: Callable, instruction: str) -> None:
    """Let the Python operator ``function`` on two lane vectors be the LLVM ``instruction``."""

    @infer_global(function)
    class _Typing(ConcreteTemplate):
        cases = [signature(_lanes, _lanes, _lanes)]

    @lower_builtin(function, LanesType, LanesType)
    def _lower(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return getattr(builder, instruction)(*args)


for _function, _instruction in {
    operator.add: "fadd",
    operator.sub: "fsub",
    operator.mul: "fmul",
    operator.truediv: "fdiv",
}.items():
    _register(_function, _instruction)


def emit_pointer(builder, address, index):  # type: ignore[no-untyped-def]
    """Pointer to lane vector number ``index`` of the memory at ``address``, as LLVM code."""
    base = builder.inttoptr(address, VECTOR.as_pointer())
    return builder.gep(base, [index], source_etype=VECTOR)


def emit_call(builder, name, *args):  # type: ignore[no-untyped-def]
    """The LLVM intrinsic ``name`` of lane vectors."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(args))
    function = builder.module.declare_intrinsic(f"llvm.{name}.v{LANES}f64", (), kind)
    return builder.call(function, args)


def emit_fill(builder, number):  # type: ignore[no-untyped-def]
    """The lane vector with the same ``number`` in every field, as LLVM code."""
    one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, _INTEGER(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), mask)


@vector_intrinsic
def load(typingctx, address, index):  # type: ignore[no-untyped-def]
    """Lane vector number ``index`` of the memory at ``address``."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.load(emit_pointer(builder, *args), align=8, typ=VECTOR)

    return _lanes(types.intp, types.intp), codegen


@vector_intrinsic
def peek(typingctx, address, index):  # type: ignore[no-untyped-def]
    """Integer number ``index`` of the 64-bit integers at ``address``."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        base = builder.inttoptr(args[0], _INTEGER.as_pointer())
        return builder.load(builder.gep(base, [args[1]], source_etype=_INTEGER), typ=_INTEGER)

    return types.intp(types.intp, types.intp), codegen


@vector_intrinsic
def store(typingctx, address, index, value):  # type: ignore[no-untyped-def]
    """Write ``value`` as lane vector number ``index`` of the memory at ``address``."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        builder.store(args[2], emit_pointer(builder, *args[:2]), align=8)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, _lanes), codegen


@vector_intrinsic
def fill(typingctx, number):  # type: ignore[no-untyped-def]
    """The lane vector with the same ``number`` in every field."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return emit_fill(builder, args[0])

    return _lanes(types.float64), codegen


@vector_intrinsic
def fma(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """``a * b + c``, fused where the machine can."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return emit_call(builder, "fmuladd", *args)

    return _lanes(_lanes, _lanes, _lanes), codegen


@vector_intrinsic
def sqrt(typingctx, a):  # type: ignore[no-untyped-def]
    """Square root in every field."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return emit_call(builder, "sqrt", *args)

    return _lanes(_lanes), codegen


@vector_intrinsic
def _power_of_two(typingctx, shifted):  # type: ignore[no-untyped-def]
    """``2**n`` from ``_SHIFT + n``, whose last bits are the integer ``n``."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        integers = ir.VectorType(_INTEGER, LANES)
        bits = builder.bitcast(args[0], integers)
        bits = builder.add(bits, ir.Constant(integers, [1023] * LANES))
        bits = builder.shl(bits, ir.Constant(integers, [52] * LANES))
        return builder.bitcast(bits, VECTOR)

    return _lanes(_lanes), codegen


_SHIFT = 1.5 * 2.0**52
_LOG2_E = math.log2(math.e)
_LOG_2_HIGH, _LOG_2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_TAYLOR = tuple(1.0 / math.factorial(k) for k in range(12, -1, -1))
_TAYLOR_LAST = 1.0 / math.factorial(13)


@kernel
def exp(x):  # type: ignore[no-untyped-def]
    """``e**x`` in every field, to one unit in the last place or so; for ``abs(x) < 700``."""
    shifted = fma(x, fill(_LOG2_E), fill(_SHIFT))
    n = shifted - fill(_SHIFT)
    r = fma(n, fill(-_LOG_2_LOW), fma(n, fill(-_LOG_2_HIGH), x))
    series = fill(_TAYLOR_LAST)
    for coefficient in _TAYLOR:
        series = fma(series, r, fill(coefficient))
    return series * _power_of_two(shifted)


def aligned(*shape: int) -> np.ndarray:
    """Zeros of shape ``(*shape, LANES)`` that begin on a cache-line boundary."""
    length = math.prod(shape) * LANES
    raw = np.zeros(length + _ALIGNMENT // 8)
    skip = -raw.ctypes.data % _ALIGNMENT // 8
    return raw[skip : skip + length].reshape(*shape, LANES)
