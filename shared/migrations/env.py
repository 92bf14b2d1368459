"""Alembic's hook: runs the revisions on the connection that shared.migrate holds the lock on."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=None, transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
