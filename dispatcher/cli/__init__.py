"""The command `skillfleet`."""
