# SPDX-License-Identifier: Apache-2.0
"""Sizes of fake tensors, which are expressions of sympy, as expressions of TVM."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import chain
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from topi_ext.compat import simplify, tir

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)

_QUOTIENTS = ("FloorDiv", "CleanDiv")
_REMAINDERS = ("Mod", "PythonMod")


def expr_of(size: Any) -> Any:
    """Return the expression of a symbolic number; a number is returned unchanged."""
    return size.node.expr if isinstance(size, SYMBOLIC) else size


def leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors, numbers and None of a value or of several, nested ones too."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    else:
        yield value


class Symbols(dict[str, Any]):
    """The TVM variable of each symbol by its name.

    Attributes
    ----------
    equal : dict of sympy expression to sympy expression
        The shortest one of several sizes that PyTorch knows to be equal, for each of the others:
        both ``2*(n//4)`` and ``n//2`` are sizes of a U-Net, which concatenates their tensors.
    """

    def __init__(self, sizes: Iterable[Any]) -> None:
        symbolic = {expr_of(size): size for size in sizes if isinstance(size, SYMBOLIC)}
        free = (sorted(map(str, expr.free_symbols)) for expr in symbolic)
        names = dict.fromkeys(chain.from_iterable(free))
        super().__init__((name, tir.Var(name, "int64")) for name in names)
        self.equal: dict[Any, Any] = {}
        by_value: dict[Any, list[Any]] = {}
        for expr in sorted(symbolic, key=sympy.count_ops):
            size = symbolic[expr]
            if not isinstance(size, torch.SymInt) or is_unbacked(size):
                continue
            known = by_value.setdefault(size.node.hint, [])
            same = (other for other in known if statically_known_true(size == other))
            if (other := next(same, None)) is None:
                known.append(size)
            else:
                self.equal[expr] = expr_of(other)


def symbols_of(values: Iterable[Any]) -> Symbols:
    """Return a TVM variable for each symbol of the sizes of fake tensors, in order of appearance.

    Parameters
    ----------
    values : iterable
        Fake tensors, symbolic numbers, numbers, None; lists and tuples of them.

    Returns
    -------
    Symbols
        Variables of int64 by the name of the symbol.
    """
    every = (leaf for value in values for leaf in leaves(value))
    sizes = (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in every)
    return Symbols(chain.from_iterable(sizes))


def is_unbacked(value: Any) -> bool:
    """Return whether a fake tensor or number depends on the values of tensors."""
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    free = [symbol for size in sizes for symbol in getattr(expr_of(size), "free_symbols", ())]
    return any(str(symbol).startswith(("u", "zuf", "zu")) for symbol in free)


def size_in(size: Any, symbols: Mapping[str, Any]) -> Any:
    """Return a size for TVM: an ``int``, or an expression of variables.

    Parameters
    ----------
    size : int, SymInt or sympy expression
    symbols : dict of str to tirx.Var
        The variable of each symbol.

    Raises
    ------
    ValueError
        For a function of sizes that has no counterpart.
    """
    expr = expr_of(size)
    if isinstance(symbols, Symbols):
        expr = symbols.equal.get(expr, expr)
    return simplify(_converted(expr, symbols))


def _converted(expr: Any, symbols: Mapping[str, Any]) -> Any:
    if isinstance(expr, (int, sympy.Integer)):
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        if str(expr) not in symbols:
            raise ValueError(f"size {expr} is not known from any input")
        return symbols[str(expr)]
    name = type(expr).__name__
    if isinstance(expr, sympy.Pow):
        base, exponent = expr.args
        if isinstance(exponent, sympy.Integer) and 0 < int(exponent) <= 8:
            return math.prod([_converted(base, symbols)] * int(exponent))
    convert = _FUNCTIONS.get(name)
    if name in _ROUNDED_QUOTIENTS and type(expr.args[0]).__name__ == "IntTrueDiv":
        expr, convert = expr.args[0], _ROUNDED_QUOTIENTS[name]
    if convert is None:
        raise ValueError(f"size {expr} is a function {name}, which has no counterpart")
    return convert(*(_converted(argument, symbols) for argument in expr.args))


def _extremum(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *sizes: reduce(function, sizes)


def _indexing(base: Any, divisor: Any, modulus: Any) -> Any:
    return tir.floormod(tir.floordiv(base, divisor), modulus)


_ROUNDED_QUOTIENTS: dict[str, Callable[..., Any]] = {
    "CeilToInt": lambda a, b: tir.floordiv(a + (b - 1), b),
    "FloorToInt": lambda a, b: tir.floordiv(a, b),
    "TruncToInt": lambda a, b: tir.truncdiv(a, b),
}
"""Functions of a quotient of integers, by the name of their class."""

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *sizes: sum(sizes[1:], sizes[0]),
    "Mul": lambda *sizes: math.prod(sizes[1:], start=sizes[0]),
    **dict.fromkeys(_QUOTIENTS, lambda a, b: tir.floordiv(a, b)),
    **dict.fromkeys(_REMAINDERS, lambda a, b: tir.floormod(a, b)),
    "ModularIndexing": _indexing,
    "Max": _extremum(lambda a, b: tir.max(a, b)),
    "Min": _extremum(lambda a, b: tir.min(a, b)),
    "Identity": lambda size: size,
}
"""Functions of sizes by the name of their class in sympy or in torch.utils._sympy.functions."""
