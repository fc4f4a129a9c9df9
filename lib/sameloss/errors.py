"""The one exception that is the reader's to mend."""


class UserError(ValueError):
    """Something given from outside is wrong: a parameter, a file, a profile, a checkpoint.

    The message is one line that names the file, line or key, what was found and what is allowed.
    The command line prints it without a traceback and exits with code 2; everything else that is raised is
    a fault of the project.
    """
