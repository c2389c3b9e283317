# SPDX-License-Identifier: Apache-2.0
"""Training steps of PyTorch modules, compiled: :func:`relax_ext.training`.

``module`` makes a function of a module and refuses what would train otherwise than in PyTorch,
``graphs`` compiles it with its gradients by the backend of ``torch.compile``, ``optimizer`` copies
an optimizer, ``step`` runs all of it.  PyTorch is imported when :func:`training` is called.
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
    """Compile the training step of a PyTorch module: forward and backward in one graph.

    Parameters
    ----------
    module : torch.nn.Module
        Its ``forward`` returns the loss, a scalar.  Parameters are float32, or float64.
    example : sequence of torch.Tensor
        Arguments of ``forward``.  A second shape is compiled when it first occurs, all others
        together at the third one.
    optimizer : torch.optim.Optimizer
        An optimizer of ``torch.optim`` for parameters of `module`, with any number of groups.  A
        copy updates the weights.  The groups are read at every step, so that schedulers work as
        usual; its own ``step`` is not called.
    target : str, dict or tvm.target.Target, optional
        An llvm target; by default :func:`relax_ext.host_target`, for the threads of PyTorch.
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
    from .. import torch as _  # noqa: F401 (raises where PyTorch is missing or too old)
    from .step import TrainingStep

    return TrainingStep(module, example, optimizer, target, clip_norm, database)
