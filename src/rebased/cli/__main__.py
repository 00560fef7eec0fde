"""`python -m rebased.cli`, for when the `rebased` command is not on the path."""

from rebased.cli import main

main()
