"""What `make bench` runs: figures as ratios within one run, never a test."""
