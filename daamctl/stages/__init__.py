"""One module per stage: read artifacts, call the library, write artifacts. Stages meet in files, never in imports."""
