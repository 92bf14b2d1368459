"""Containers of one use: built from values, fed over stdin, read as a stream, always removed."""
