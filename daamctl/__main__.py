"""`python -m daamctl` is the same as `daamctl`."""

import io
import os
import sys


def main() -> None:
    """Entry point of the console script."""
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
