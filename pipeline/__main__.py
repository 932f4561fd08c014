"""`python -m pipeline`: the one way in."""

from pipeline.guard import check_packages

if __name__ == "__main__":
    check_packages()
    from pipeline.cli.app import main

    main()
