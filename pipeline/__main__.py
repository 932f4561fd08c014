"""The command line's entry point: `python -m pipeline`, and the console script `cadre`."""

from pipeline.run.signals import raise_on_stop_signals
from pipeline.shadowing import check_packages


def main() -> None:
    """Check that the packages are Cadre's, then run the command line; ends the process with its exit code."""
    raise_on_stop_signals()  # before anything is imported that takes seconds
    check_packages()
    from pipeline.cli.app import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
