"""``python -m chappe`` is the command line."""

from chappe.cli import main

main()
