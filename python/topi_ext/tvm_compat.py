# SPDX-License-Identifier: Apache-2.0
"""The only room that knows one TVM version from another.

Written for apache-tvm 0.25, 0.26 and 0.27 (Relax) and for TVM 0.17 (Relay).  What needs either IR
is inside functions, so that this room can be imported beside a TVM that has only the other one.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from threading import RLock
from typing import Any

try:
    import tvm
except ImportError as error:
    raise ImportError(f"topi_ext: needs TVM (pip install apache-tvm): {error}") from error

from tvm.script.ir_builder import IRBuilder

try:
    from tvm.script.ir_builder import tirx as script
except ImportError:
    from tvm.script.ir_builder import tir as script

__all__ = [
    "IRBuilder",
    "allocate",
    "as_size",
    "asserting",
    "bind",
    "building",
    "call_attr",
    "constant_value",
    "converts_vectors",
    "dtype_name",
    "flat_alias",
    "host_target",
    "infer_key",
    "is_cpu",
    "is_for_this_machine",
    "is_gpu",
    "is_replaced",
    "known_shape",
    "missing_vectors",
    "op_attr",
    "opaque",
    "own_op",
    "prim_func",
    "process_state",
    "processors",
    "reinterpret",
    "relax",
    "relay",
    "release",
    "replace_op_attr",
    "restore_op_attrs",
    "root_block",
    "s_tir",
    "same_size",
    "script",
    "set_op_attr",
    "simplify",
    "statements",
    "system_triple",
    "tensor_type",
    "tensor_type_of",
    "tir",
    "type_of",
    "uses_var",
]

tir = getattr(tvm, "tirx", None) or tvm.tir
_REINTERPRET, _PREFETCH = (
    f"{tir.__name__.rpartition('.')[2]}.{name}" for name in ("reinterpret", "prefetch")
)
s_tir = getattr(tvm, "s_tir", None) or tvm.tir
_arith = getattr(tvm, "sym", None) or tvm.arith
_StringImm = getattr(tir, "StringImm", None) or tvm.ir.StringImm
_LETS_ARE_FRAMES = not hasattr(script, "bind")
"""Before TVM 0.25 a variable or an allocation is a frame around the statements that follow it."""
_ADDRESSES_HAVE_TYPES = hasattr(tir.IntImm("int64", 0), "ty")
"""Before TVM 0.26 the address of an element is no place for a buffer."""


def release() -> str:
    """Version and folder of the TVM that is imported."""
    return f"{tvm.__version__}, {os.path.dirname(tvm.__file__)}"


# ---------------------------------------------------------------- sizes and dtypes


def as_size(value: Any) -> Any:
    """The size `value` as an ``int`` where it is a constant, else unchanged."""
    return int(value) if isinstance(value, (int, tir.IntImm)) else value


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal; ``==`` of symbolic ones is an expression."""
    difference = simplify(a - b)
    return isinstance(difference, int) and difference == 0


def simplify(value: Any) -> Any:
    """The size `value` simplified: an ``int`` where that makes it a constant."""
    return value if isinstance(value, int) else as_size(_arith.Analyzer().simplify(value))


def dtype_name(dtype: Any) -> str:
    """Name of a dtype, ``""`` where it is not known or not given: None, ``""`` and void."""
    if dtype is None:
        return ""
    name = str(getattr(dtype, "dtype", dtype))
    return "" if name == "void" else name


# ---------------------------------------------------------------- building functions

building = RLock()
"""Held while a kernel is built: what is open then belongs to the process, not to a thread."""

_open: list[ExitStack] = []


@contextmanager
def statements(frame: Any) -> Iterator[Any]:
    """Enter `frame`; what :func:`bind` and :func:`allocate` open inside ends with it."""
    with frame as value, ExitStack() as inner:
        _open.append(inner)
        try:
            yield value
        finally:
            _open.pop()


def prim_func() -> Any:
    """The frame of a function."""
    return script.prim_func() if _LETS_ARE_FRAMES else script.prim_func(s_tir=True)


@contextmanager
def root_block() -> Iterator[None]:
    """The frame of a function's body: a block where Relax asks for one."""
    if _LETS_ARE_FRAMES:
        # The body is taken out of the function, see relay_ext: no block may be around it.
        with statements(ExitStack()):
            yield
        return
    with statements(script.sblock("root")):
        # Stated empty: deriving the regions fails on the divisions of our indices.
        script.reads()
        script.writes()
        yield


def asserting(func: Any, rules: Sequence[tuple[Any, str]]) -> Any:
    """A function of :func:`root_block`, which raises the line of a rule that does not hold.

    Relay takes bodies out of functions, and does so itself.
    """
    if not rules or _LETS_ARE_FRAMES:
        return func
    realize, root, kind = type(func.body), func.body.block, _StringImm("ValueError")
    # In this order, whatever the constructor calls its parameters.
    asserts = [tir.AssertStmt(holds, kind, [_StringImm(line)]) for holds, line in rules]
    body = tir.SeqStmt([*asserts, root.body])
    inside = type(root)([], [], [], root.name_hint, body, alloc_buffers=root.alloc_buffers)
    return func.with_body(realize([], tir.const(True, "bool"), inside))


def flat_alias(buffer: Any, elements: Any, dtype: str) -> Any:
    """The memory of `buffer` as a buffer with one axis, which begins where any element may."""
    if _LETS_ARE_FRAMES:
        aligned = buffer.data_alignment
        return tir.decl_buffer((elements,), dtype, data=buffer.data, data_alignment=aligned)
    return script.decl_buffer((elements,), dtype, data=buffer.data, align=buffer.data_alignment)


def uses_var(expr: Any, variable: Any) -> bool:
    """Whether a variable occurs in an expression."""
    return any(found.same_as(variable) for found in tir.analysis.undefined_vars(expr))


def bind(value: Any) -> Any:
    """A variable of the generated code."""
    if _LETS_ARE_FRAMES:
        return _open[-1].enter_context(script.LetStmt(value))
    return script.bind(value)


def opaque(value: Any) -> Any:
    """`value`, about which TVM's passes know nothing more than that it has 64 bits."""
    return reinterpret(value, "int64")


def reinterpret(value: Any, dtype: str) -> Any:
    """The bits of `value` read as another dtype of the same width."""
    return tir.call_intrin(dtype, _REINTERPRET, value)


def converts_vectors(dtype: str) -> bool:
    """Whether vectors of `dtype` may be converted and stored.

    Before TVM 0.27 those of bfloat16 fail as soon as a pass has rewritten them: it compares the
    vector with one element of where it is stored.
    """
    return dtype != "bfloat16" or hasattr(tvm, "sym")


def allocate(elements: Any, dtype: str, *, hidden: bool = False) -> Any:
    """A buffer that lives until the enclosing statements end.

    Parameters
    ----------
    hidden : bool
        Whether it is reached by its address.  TVM's CompactBufferAllocation evaluates each access
        to memory that a function allocates over all loops and variables in scope, which takes
        longer than all other passes; it looks at none that goes through an address.  TVM 0.26 and
        later.
    """
    if not _LETS_ARE_FRAMES:
        made = script.alloc_buffer((elements,), dtype)
        if not (hidden and _ADDRESSES_HAVE_TYPES):
            return made
        place = script.bind(tir.address_of(made[tir.IntImm("int64", 0)]))
        # The last use that TVM sees: until here it gives the memory to nothing else.
        _open[-1].callback(lambda: script.evaluate(made.data))
        return script.decl_buffer((elements,), dtype, data=place)
    data = _open[-1].enter_context(script.allocate([elements], dtype, "global"))
    return tir.decl_buffer((elements,), dtype, data=data)


# ---------------------------------------------------------------- Relax: types


@cache
def relax() -> Any:
    """The module ``tvm.relax``.

    Raises
    ------
    ImportError
        One line, where this TVM has no Relax that we know.
    """
    try:
        from tvm import relax as module
    except ImportError:
        module = None
    if module is None or not hasattr(tvm, "tirx"):
        version = getattr(tvm, "__version__", "of unknown version")
        raise ImportError(
            f"relax_ext: needs apache-tvm 0.25 to 0.27, which has Relax; found tvm {version}"
        )
    return module


@cache
def relay() -> Any:
    """The module ``tvm.relay``.

    Raises
    ------
    ImportError
        One line, where this TVM has no Relay or lacks a name that we need of it.
    """
    version = getattr(tvm, "__version__", "of unknown version")
    try:
        from tvm import relay as module
    except ImportError:
        raise ImportError(
            f"relay_ext: needs a TVM that has Relay, such as 0.17; found tvm {version}"
        ) from None
    needed = {
        "tvm.target.override_native_generic_func": (tvm.target, "override_native_generic_func"),
        "tvm.te.extern": (tvm.te, "extern"),
        "tvm.te.create_schedule": (tvm.te, "create_schedule"),
        "tvm.relay.op.op.OpStrategy": (module.op.op, "OpStrategy"),
        "tvm.relay.backend.te_compiler": (module.backend, "te_compiler"),
        "tvm.script.ir_builder.tir.LetStmt": (script, "LetStmt"),
        "tvm.tir.Any": (tir, "Any"),
    }
    missing = [name for name, (owner, attribute) in needed.items() if not hasattr(owner, attribute)]
    if missing:
        raise ImportError(f"relay_ext: tvm {version} lacks {', '.join(missing)}")
    return module


@cache
def infer_key() -> str:
    """Name of the operator attribute that infers types."""
    return "FInferStructInfo" if hasattr(relax(), "TensorStructInfo") else "FInferType"


def _tensor_type_class() -> Any:
    # TensorType exists in 0.25 too, but is another class there.
    return getattr(relax(), "TensorStructInfo", None) or relax().TensorType


def tensor_type(shape: Any, dtype: str, ndim: int, vdevice: Any = None) -> Any:
    """Type of a tensor; `shape` may be None for unknown, `dtype` ``""`` for unknown."""
    unknown = "" if infer_key() == "FInferStructInfo" else None
    rank = {"ndim": ndim} if shape is None else {}
    return _tensor_type_class()(shape, dtype or unknown, vdevice, **rank)


def type_of(expr: Any) -> Any:
    """Type of a normalized Relax expression."""
    return expr.struct_info if infer_key() == "FInferStructInfo" else expr.ty


def tensor_type_of(expr: Any) -> Any:
    """Type of a normalized Relax expression, or None if that is no tensor."""
    found = type_of(expr)
    return found if isinstance(found, _tensor_type_class()) else None


def constant_value(expr: Any) -> Any:
    """The array that a Relax constant holds, or None for another expression."""
    kind = getattr(relax(), "Constant", None) or tvm.ir.GenericConst
    if not isinstance(expr, kind):
        return None
    return expr.data if hasattr(expr, "data") else expr.value


def known_shape(shape: Any) -> Any:
    """Sizes of a shape expression, or None where they are not known."""
    if shape is None:
        return None
    stated = shape if isinstance(shape, relax().ShapeExpr) else type_of(shape)
    sizes = getattr(stated, "values", None)
    return None if sizes is None else tuple(as_size(size) for size in sizes)


# ---------------------------------------------------------------- operators


def op_attr(op_name: str, key: str) -> Any:
    """The attribute `key` of an operator, None where it is unset."""
    try:
        return tvm.ir.Op.get(op_name).get_attr(key)
    except RuntimeError:  # no operator has ever had this attribute
        return None


def set_op_attr(op_name: str, key: str, value: Any, level: int = 10) -> None:
    """Set the attribute `key` of an operator, or unset it where `value` is None."""
    op = tvm.ir.Op.get(op_name)
    op.reset_attr(key)
    if value is not None:
        op.set_attr(key, value, level)


def _same(first: Any, second: Any) -> bool:
    """Whether two attributes are one object of TVM."""
    if first is None or second is None:
        return first is second
    if hasattr(first, "same_as"):
        return bool(first.same_as(second))
    return bool(first.handle.value == second.handle.value)  # a function of TVM 0.17


Replaced = dict[tuple[str, str], tuple[Any, Any]]
"""What an attribute was and what it became, by operator and key."""


def replace_op_attr(
    replaced: Replaced, op_name: str, key: str, value: Any, level: int = 10
) -> None:
    """Set an attribute as :func:`set_op_attr`, and note it in `replaced`."""
    before = op_attr(op_name, key)
    set_op_attr(op_name, key, value, level)
    replaced[op_name, key] = before, op_attr(op_name, key)


def is_replaced(replaced: Replaced, op_name: str, key: str) -> bool:
    """Whether the attribute is what it became, and nobody has set it since."""
    noted = replaced.get((op_name, key))
    return noted is not None and _same(op_attr(op_name, key), noted[1])


def restore_op_attrs(replaced: Replaced) -> None:
    """Set attributes to what they were.  What somebody has set since stays, and stays noted."""
    for (op_name, key), (before, _) in list(replaced.items()):
        if is_replaced(replaced, op_name, key):
            set_op_attr(op_name, key, before)
            del replaced[op_name, key]


def process_state(package: str) -> dict[str, Any]:
    """What `package` keeps for the life of the process: a second import of it finds that here."""
    return vars(tvm).setdefault(f"_state_of_{package}", {})


def own_op(op_name: str, description: str, arguments: Sequence[str]) -> None:
    """Add a pure operator of tensors to TVM, once per process."""
    if op_name in tvm.ir.Op.list_op_names():
        return
    tvm.get_global_func("ir.RegisterOp")(op_name, description)
    op = tvm.ir.Op.get(op_name)
    op.set_num_inputs(len(arguments))
    for name in arguments:
        op.add_argument(name, "Tensor", "")
    op.set_attr("FPurity", True, 10)


def call_attr(call: Any, name: str) -> Any:
    """The attribute `name` of a call, whether its attributes are a class or a dictionary, which
    may lack it: None then."""
    attrs = call.attrs
    if isinstance(attrs, tvm.ir.DictAttrs):
        return dict(attrs.items()).get(name)
    return getattr(attrs, name)


# ---------------------------------------------------------------- targets


def host_target(num_cores: int | None = None) -> Any:
    """The llvm target that uses all that this machine's processor can do."""
    llvm = tvm.target.codegen
    options: dict[str, Any] = {
        "kind": "llvm",
        "mcpu": llvm.llvm_get_system_cpu(),
        "num-cores": num_cores or len(os.sched_getaffinity(0)),
    }
    # A virtual machine may hide vector units that the processor's name promises, or have more than
    # it promises: there, and where an LLVM is older than the processor, the name is another's.
    vector = ("avx", "amx", "fma", "f16c", "sse", "bmi")
    found = dict(tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")())
    has = {name: bool(there) for name, there in found.items() if name.startswith(vector)}
    promised = set(map(str, llvm.llvm_get_cpu_features(tvm.target.Target(options))))
    # AVX10 is a name for vectors that are named one by one too.
    more = {name for name in has if has[name] and not name.startswith("avx10")} - promised
    if options["mcpu"] != "generic":
        # No kernel computes in float16; and of it plans would conclude that second caches are of
        # 2 MB, by which float32 took up to 1.5 times as long where the name says less.
        more -= {"avx512fp16"}
    if not _linux_grants_amx():
        more = {name for name in more if not name.startswith("amx")}
    changes = sorted("+" + name for name in more)
    changes += sorted("-" + name for name in promised if not has.get(name, True))
    named = {**options, "mattr": changes} if changes else options
    if gathers_elements(tvm.target.Target(named)):
        named = {**options, "mattr": [*changes, *_NO_GATHERS]}
    return tvm.target.Target(named)


_ARCH_PRCTL, _SUPPORTED, _TILE_DATA = 158, 0x1021, 18


def _linux_grants_amx() -> bool:
    """Whether this Linux grants tile registers to a process that asks, as kernels do."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False  # the numbers are those of x86-64
    supported = ctypes.c_uint64()
    answer = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _SUPPORTED, ctypes.byref(supported))
    return answer == 0 and bool(supported.value >> _TILE_DATA & 1)


_NO_GATHERS = ("+prefer-no-gather", "+prefer-no-scatter")


def gathers_elements(target: Any) -> bool:
    """Whether LLVM copies elements that are apart by AVX-512's gathers and scatters, and could be
    told not to: they take several cycles for each element, plain loads and stores about one."""
    llvm = tvm.target.codegen
    if llvm.llvm_version_major() < 18:
        return False
    features = set(map(str, llvm.llvm_get_cpu_features(target)))
    return "avx512f" in features and not {name[1:] for name in _NO_GATHERS} <= features


def is_cpu(target: Any) -> bool:
    """Whether a target's loops can be parallel."""
    return "cpu" in target.keys


def is_gpu(target: Any) -> bool:
    """Whether a target wants its loops bound to threads."""
    return "gpu" in target.keys


def is_for_this_machine(target: Any) -> bool:
    """Whether an llvm target compiles for the architecture that this process runs on."""
    triple = str(target.attrs.get("mtriple", ""))
    return not triple or triple.split("-")[0] == system_triple().split("-")[0]


def system_triple() -> str:
    """What LLVM calls this machine."""
    return str(tvm.target.codegen.llvm_get_system_triple())


def processors() -> set[str]:
    """The processors that LLVM knows of this machine's architecture."""
    plain = tvm.target.Target({"kind": "llvm"})
    return set(map(str, tvm.target.codegen.llvm_get_cpu_archlist(plain)))


def missing_vectors(target: Any) -> list[str]:
    """The vector instructions that an llvm target uses and this processor has not."""
    here = dict(tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")())
    wanted = map(str, tvm.target.codegen.llvm_get_cpu_features(target))
    vector = ("avx", "amx", "fma", "f16c")
    return sorted(n for n in wanted if n.startswith(vector) and not here.get(n, True))


def llvm_features(target: Any) -> tuple[frozenset[str], int] | None:
    """CPU features and threads of an llvm target, or None for another target or no target.

    Without those of AMX where kernels could not ask for it: that takes Linux, and TVM 0.25; and
    without products of bfloat16 where LLVM's take other operands than ours give.  With
    "non-temporal-stores", our own name, where kernels can write vectors past the caches.
    """
    if target is None or str(getattr(target.kind, "name", target.kind)) != "llvm":
        return None
    llvm = tvm.target.codegen
    triple = str(target.attrs.get("mtriple", "") or llvm.llvm_get_system_triple())
    if not _knows_triple(triple):
        return None
    cores = int(target.attrs.get("num-cores", 0))  # TVM takes 0 and less, and plans nothing by it
    threads = cores if cores > 0 else tvm.runtime.num_threads()
    found = frozenset(map(str, llvm.llvm_get_cpu_features(target)))
    if _LETS_ARE_FRAMES or "linux" not in triple:
        found = frozenset(name for name in found if not name.startswith("amx"))
    if not reads_llvm():
        found -= {"avx512bf16"}
    elif "avx" in found:
        found |= {"non-temporal-stores"}
    return found, threads


@cache
def _knows_triple(triple: str) -> bool:
    """Whether LLVM compiles for a triple. Asked for the features of another it ends the process;
    left alone, TVM says so when it compiles."""
    ask = getattr(tvm.target.codegen, "llvm_get_vector_width", None)
    if ask is None:  # TVM 0.17: nothing there refuses, and its own build ends the process too
        return True
    try:
        ask(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
    except RuntimeError:
        return False
    return True


def size_var(name: str) -> Any:
    """A fresh variable for a size."""
    return tir.Var(name, "int64")


# ---------------------------------------------------------------- calls of the processor


def address(buffer: Any, offset: Any) -> Any:
    """The address of the byte `offset` of a buffer, of which any part may then be used."""
    # Not of an element: TVM would take it for the only one that is used, and allocate no more.
    return tir.call_intrin("handle", "tirx.handle_add_byte_offset", buffer.data, offset)


def llvm_call(name: str, *arguments: Any) -> None:
    """Emit a call of one of LLVM's intrinsics."""
    script.evaluate(tir.call_llvm_intrin("void", name, *arguments))


def prefetch(buffer: Any, index: Any) -> None:
    """Ask for the cache line of an element of an argument; nothing is read."""
    if str(buffer.dtype) == "bfloat16" and not _ADDRESSES_HAVE_TYPES:
        return  # Rewriting bfloat16, these releases lose the element whose address is taken.
    place = tir.address_of(buffer[index])
    to_read, near, data = (tir.IntImm("int32", number) for number in (0, 3, 1))
    operation = tvm.ir.Op.get(_PREFETCH)
    script.evaluate(tir.call_intrin("void", operation, place, to_read, near, data))


def reads_llvm() -> bool:
    """Whether :func:`imported_llvm` takes text with opaque pointers, as LLVM 17 writes it."""
    return not _LETS_ARE_FRAMES and tvm.target.codegen.llvm_version_major() >= 17


@contextmanager
def imported_llvm(text: str) -> Iterator[None]:
    """Statements inside may call the functions that `text`, in LLVM's language, defines.

    They are inlined.
    """
    with statements(script.attr(tir.IntImm("int32", 0), "pragma_import_llvm", text)):
        yield


def extern_value(dtype: str, name: str, *arguments: Any) -> Any:
    """What a function without side effects returns."""
    return tir.call_pure_extern(dtype, name, *arguments)


def extern_call(name: str, *arguments: Any) -> None:
    """Call a function that returns nothing."""
    script.evaluate(tir.call_extern("void", name, *arguments))


def system_call(*arguments: int) -> Any:
    """What a system call of Linux returns."""
    numbers = (tir.IntImm("int64", argument) for argument in arguments)
    return tir.call_extern("int64", "syscall", *numbers)
