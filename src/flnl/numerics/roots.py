"""Square roots whose bits do not depend on the processor."""

from torch import Tensor


def square_root(x: Tensor) -> Tensor:
    """``√x`` elementwise, by one division after another of exact roots; 0 of 0, inf of inf, NaN of negative numbers.

    On a CPU ``x.sqrt()`` takes MKL's root, which begins with the processor's own approximation of ``1 / √x`` (the
    instruction ``rsqrtps``), and processors of Intel and AMD have different ones: its last bit is theirs, whatever
    instruction set is pinned. ``x.rsqrt()`` divides by IEEE's root. MKL's tan, atan, asin, acos and logarithms of 64
    bits begin in such a way, too; atan2 is not MKL's. The result may be one unit in the last place off, also of
    squares. Not to be differentiated near 0, where the gradient overflows.

    >>> import torch
    >>> square_root(torch.tensor([0.0, 4.0, torch.inf]))
    tensor([0., 2., inf])
    """
    return x.rsqrt().reciprocal()
