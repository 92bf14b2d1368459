"""The REST interface, a module for each thing it is about."""
