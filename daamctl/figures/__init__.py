"""Figures: described once (`spec`), then drawn as PNG and PDF (`static`) and in the browser (`interactive`)."""
