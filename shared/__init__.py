"""What dispatcher and worker have in common: the tables, the keys, the queue, the rules."""
