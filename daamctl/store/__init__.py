"""Files of every kind: written whole and durably, sealed, locked, and compared with what was recorded when read."""
