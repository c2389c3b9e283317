# SPDX-License-Identifier: Apache-2.0
"""Gradients of sums of products: einsum and outer products."""

from __future__ import annotations

from typing import Any

from topi_ext.compat import call_attr, relax
from topi_ext.spec.geometry import fail

from .parts import Rule, fields_of, op_name, reshaped, shape_of, total

R = relax()
op = R.op


def einsum(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate an einsum: for each operand, the einsum of the gradient with the others.

    Raises
    ------
    ValueError
        One line, for an ellipsis, and for an operand that has a letter twice.
    """
    stated = str(call_attr(call, "subscripts")).replace(" ", "")
    inputs, _, result = stated.partition("->")
    terms = inputs.split(",")
    if "->" not in stated:
        letters = inputs.replace(",", "")
        result = "".join(sorted(one for one in set(letters) if letters.count(one) == 1))
    if "." in stated or any(len(set(term)) < len(term) for term in terms):
        raise fail(
            op_name(call),
            f"subscripts={stated} must have no ellipsis, and no letter twice in an operand, "
            "to have a gradient",
        )
    tensors = fields_of(call.args[0], bb)
    return [
        R.Tuple([_gradient(index, (terms, result), tensors, dy, bb) for index in range(len(terms))])
    ]


def _gradient(
    index: int, subscripts: tuple[list[str], str], tensors: list[Any], dy: Any, bb: Any
) -> Any:
    """Return the gradient of one operand; letters of its own alone are broadcast."""
    terms, result = subscripts
    others = [term for other, term in enumerate(terms) if other != index]
    factors = [tensor for other, tensor in enumerate(tensors) if other != index]
    known = "".join([result, *others])
    letters = "".join(letter for letter in terms[index] if letter in known)
    equation = f"{','.join([result, *others])}->{letters}"
    part = (
        bb.emit(op.einsum([dy, *factors], equation)) if equation != f"{letters}->{letters}" else dy
    )
    if letters == terms[index]:
        return part
    sizes = shape_of(tensors[index])
    kept = [size if letter in known else 1 for letter, size in zip(terms[index], sizes)]
    return bb.emit(op.broadcast_to(bb.emit(reshaped(part, kept)), R.ShapeExpr(sizes)))


def outer(y: Any, call: Any, dy: Any, bb: Any) -> list[Any]:
    """Differentiate the outer product of two vectors."""
    first, second = call.args
    n, m = shape_of(first)[0], shape_of(second)[0]
    rows, columns = reshaped(first, [n, 1]), reshaped(second, [1, m])
    return [
        reshaped(total(op.multiply(dy, columns), [1], bb), [n]),
        reshaped(total(op.multiply(dy, rows), [0], bb), [m]),
    ]


RULES: dict[str, Rule] = {"relax.einsum": einsum, "relax.outer": outer}
