"""``python -m otimes.cli``."""

from otimes.cli import main

main()
