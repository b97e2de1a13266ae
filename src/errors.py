"""What the user can mend: one exception whose message names the key, what was wrong and what would be right."""


class UserError(Exception):
    """A mistake in the configuration, the data or the place to write to; shown as one line, exit status 2.

    The message names the key a person would type (``noise.rho``), the value found and what would be accepted.
    """
