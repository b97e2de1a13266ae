"""The size of a cohort."""


def cohort_size(fraction: float, clients: int) -> int:
    """``max(⌊γN⌋, 1)``, with a tolerance for rounding: in binary, 0.29 · 100 is 28.999….

    >>> cohort_size(0.29, 100)
    29
    """
    return max(int(fraction * clients + 1e-9), 1)
