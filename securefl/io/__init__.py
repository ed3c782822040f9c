"""Files, text and JSON, read with bounds and written whole."""
