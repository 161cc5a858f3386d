"""The root of every error that is a user's to mend. The command line prints it as one sentence, with exit code 2."""


class UserError(ValueError):
    """Something asked for that cannot be done; the message names the thing, the value and the way out."""
