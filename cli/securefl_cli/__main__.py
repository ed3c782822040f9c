"""`python -m securefl_cli`: the command where no script of it is installed."""

from securefl_cli.main import main

if __name__ == "__main__":
    main()
