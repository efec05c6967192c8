"""`python -m daamctl` is the same as `daamctl`."""

import io
import os
import sys


def main() -> None:
    """Entry point of the console script."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed; else files would get its number, and what is printed
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # e.g. Windows' cp1252 lacks the minus sign
    try:
        if "DVC_STAGE" in os.environ:
            from daamctl.cli import stage_server

            code = stage_server.run(sys.argv[1:])
            if code is not None:
                sys.exit(code)
        from daamctl.cli.app import main as start
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        sys.exit(130)
    start()


if __name__ == "__main__":
    main()
