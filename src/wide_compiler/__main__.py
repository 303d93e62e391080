"""`python -m wide_compiler` is the `wide_compiler` command."""

from .cli import main

if __name__ == "__main__":
    main()
