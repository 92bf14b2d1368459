"""The other queues, each run by an interpreter of its own: nothing here is imported by us."""
