"""``torch.func.vmap`` over the first dimension of plain tensors, without its work on nested arguments.

vmap takes arguments and results apart and checks them at every call, which a small network's step would notice.
"""

from collections.abc import Callable

from torch import Tensor
from torch._C._functorch import _add_batch_dim, _remove_batch_dim, _vmap_decrement_nesting, _vmap_increment_nesting
from torch._functorch import vmap as functorch

Function = Callable[..., tuple[Tensor, ...]]


def over_clients(one: Function) -> Function:
    """``vmap(one)``, for ``one`` of tensors to a tuple of tensors.

    The function that it returns takes tensors [K, ...] and returns tensors [K, ...].

    Raises:
        TypeError: when ``one`` returns anything but tensors.
    """

    def of_all(*given: Tensor) -> tuple[Tensor, ...]:
        clients = len(given[0])
        functorch.lazy_load_decompositions()  # type: ignore[attr-defined]
        level = _vmap_increment_nesting(clients, "error")
        try:
            results = one(*[_add_batch_dim(tensor, 0, level) for tensor in given])
            for result in results:
                if not isinstance(result, Tensor):
                    raise TypeError(f"a {type(result).__name__} where a tensor is expected")
            return tuple([_remove_batch_dim(result, level, clients, 0) for result in results])
        finally:
            _vmap_decrement_nesting()

    return of_all
