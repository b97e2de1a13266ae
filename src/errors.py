"""What goes wrong, in one line: what the user can mend, and what nobody foresaw."""


class UserError(Exception):
    """A mistake in the configuration, the data or the place to write to; shown as one line, exit status 2.

    The message names the key a person would type (``noise.rho``), the value found and what would be accepted.
    """


def in_one_line(error: BaseException) -> str:
    """An unforeseen error: its kind, and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
