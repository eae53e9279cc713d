"""``python -m precisionlab`` is the command ``precisionlab``."""

from precisionlab.cli.app import main

if __name__ == "__main__":
    main()
