"""`python -m daamctl` is the same as `daamctl`."""

from daamctl.cli.app import main

main()
