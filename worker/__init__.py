"""Pulls execution ids, runs handlers and containers, writes every transition."""
