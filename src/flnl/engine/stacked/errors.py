"""The one error of this package."""


class NotStackable(Exception):  # noqa: N818 (it is no mistake of anybody's: such clients are run one by one)
    """These clients cannot be trained as one; the message is the reason, as a run says it."""


def line(error: Exception) -> str:
    """An error on one line, its kind first."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
