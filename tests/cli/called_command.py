"""The command line, called in this process."""

from crumb_avalanche.cli import main

NEW = ["--backbone", "small_cnn", "--image-size", "32", "--threads", "1", "--progress", "false"]


def ask(capsys, *arguments):
    """Run a command; return its exit code, output and errors."""
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()
