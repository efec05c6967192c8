"""`python -m daamctl` is the same as `daamctl`."""

import codecs
import io
import os
import sys

PLAIN = {"\u2212": "-", "→": "->", "≥": ">=", "≤": "<=", "≈": "~", "✓": "+", "✗": "x"}
"""Characters that some terminals lack, as Windows' cp1252 does -> what is shown instead."""


def _shown(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace the first character that the encoding of an output lacks."""
    assert isinstance(error, UnicodeEncodeError)
    character, error.end = error.object[error.start], error.start + 1
    plain = PLAIN.get(character)
    return (plain, error.end) if plain else codecs.backslashreplace_errors(error)


def main() -> None:
    """Entry point of the console script."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed; else files would get its number, and what is printed
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    codecs.register_error("daamctl", _shown)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="daamctl")
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
