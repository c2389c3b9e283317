# SPDX-License-Identifier: Apache-2.0
"""Training steps of PyTorch modules, compiled: :func:`relax_ext.training`.

``export`` makes a function of a module and refuses what would train otherwise than in PyTorch,
``differentiate`` imports it and makes its gradients, ``torch_optimizer`` reads an optimizer,
``state`` translates tensors and their names, ``step`` runs all of it.  PyTorch is imported when
:func:`training` is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topi_ext.interrupts import keep_interrupts

if TYPE_CHECKING:
    from .step import TrainingStep


@keep_interrupts()
def training(
    module: Any,
    example: Sequence[Any],
    optimizer: Any,
    target: Any = None,
    *,
    clip_norm: float | None = None,
    database: Any = None,
) -> TrainingStep:
    """Compile the training step of a PyTorch module: forward, backward and update, in TVM.

    Parameters
    ----------
    module : torch.nn.Module
        Its ``forward`` returns the loss, a scalar.  Parameters are float32, or float64.
    example : sequence of torch.Tensor
        Arguments of ``forward``.  Batches of other shapes are compiled when they first occur.
    optimizer : torch.optim.SGD, Adam or AdamW
        Optimizer of parameters of `module`, with any number of groups.  It is read at every step,
        so that schedulers work as usual; its own ``step`` is not called.
    target : str, dict or tvm.target.Target, optional
        An llvm target; by default :func:`relax_ext.host_target`.
    clip_norm : float, optional
        The maximum norm of all gradients together, as for ``torch.nn.utils.clip_grad_norm_``.
    database : str or path, optional
        Measured plans, as for :func:`relax_ext.pipeline`.

    Returns
    -------
    TrainingStep
        Called with a batch, it performs a step and returns the loss.  It holds weights, buffers and
        the optimizer's state; those of `module` change only by ``to_torch()``.

    Raises
    ------
    ValueError
        Before compilation, if the module would not train as in PyTorch.

    Examples
    --------
    >>> optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    >>> step = relax_ext.training(module, (x, y), optimizer)
    >>> for x, y in batches:
    ...     loss = step(x, y)
    >>> step.to_torch()
    """
    try:
        from .step import TrainingStep
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise ImportError(f"relax_ext.training: needs PyTorch: {error}") from error
    return TrainingStep(module, example, optimizer, target, clip_norm, database)
