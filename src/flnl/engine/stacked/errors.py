"""The exception of this package."""


class NotStackable(Exception):  # noqa: N818 (not an error: such clients run one by one)
    """These clients cannot be trained as one network; the message is the reason that the run logs."""


def line(error: Exception) -> str:
    """An error on one line, starting with its class."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
