"""Collectives: results come from other ranks, which may not be audited, so the twin restarts from the program's value (and is counted).

Running the collective a second time in fp64 on the twins is possible (gloo and NCCL carry doubles) and would be the only way to a true
twin, but only if *every* rank does so in the same order; one rank without an audit and all of them hang. Hence not the default.

What dispatch sees (torch 2.13, gloo): ``c10d.allreduce_([tensors], group, op, ...)`` and its kin write their operands in place and return
a work object; DDP's reducer calls the same op on its bucket, whose views are then copied into the gradients. Functional collectives
(DTensor, ``_functional_collectives``) are ``_c10d_functional.all_reduce(tensor, "sum", group_name)`` followed by ``wait_tensor``.

Both are asynchronous: when the op returns, the result need not be there yet. With ``async_op=True`` and under DDP ``Work.wait`` is not
an op and cannot be seen. So the value must be taken when the tensor is next read, not when the collective returns.
"""

from __future__ import annotations

import torch

from precisionlab.ops.registry import Family, How, op_rule, optional_ops

_NOTE = "its result comes from other ranks: the twin restarts from the real value, taken at the next read since the call is asynchronous"

_C10D = (
    "allreduce_ allreduce_coalesced_ broadcast_ reduce_ allgather_ allgather_coalesced_ allgather_into_tensor_coalesced_ "
    "_allgather_base_ reduce_scatter_ reduce_scatter_tensor_coalesced_ _reduce_scatter_base_ alltoall_ alltoall_base_ gather_ scatter_ "
    "recv_ recv_any_source_"
)
_FUNCTIONAL = (
    "all_reduce all_reduce_ all_reduce_coalesced all_reduce_coalesced_ broadcast broadcast_ all_gather_into_tensor "
    "all_gather_into_tensor_coalesced all_gather_into_tensor_out reduce_scatter_tensor reduce_scatter_tensor_coalesced "
    "reduce_scatter_tensor_out all_to_all_single irecv batch_p2p_ops"
)
_AUTOGRAD = ("all_gather_into_tensor", "all_to_all_single", "reduce_scatter_tensor")
_WAITING = ("wait_tensor", "_wrap_tensor_autograd")
_SILENT = ("barrier", "monitored_barrier_", "send", "check_for_nan")


@op_rule(
    *optional_ops(torch.ops.c10d, *_C10D.split()),
    *optional_ops(torch.ops._c10d_functional, *_FUNCTIONAL.split()),
    *optional_ops(torch.ops._c10d_functional_autograd, *_AUTOGRAD),
    family=Family.COLLECTIVE,
    how=How.REAL,
    note=_NOTE,
)
class Collective:
    """Sums, gathers and exchanges between ranks."""


@op_rule(*optional_ops(torch.ops._c10d_functional, *_WAITING), family=Family.COLLECTIVE, how=How.REAL, note=_NOTE)
class Wait:
    """The point where a functional collective's result is there."""


@op_rule(
    *optional_ops(torch.ops.c10d, *_SILENT),
    *optional_ops(torch.ops._c10d_functional, "isend"),
    family=Family.COLLECTIVE,
    how=How.REAL,
    note="it computes nothing here: no tensor of this rank changes",
)
class Silent:
    """Barriers, sends and checks: the operands keep their twins."""
