"""Alembic revisions, raw SQL, numbered; each expands or contracts, never both."""
