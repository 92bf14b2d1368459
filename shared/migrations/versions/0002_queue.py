"""The queue: indexes that leave the claim alone, cancelling, pauses, limits, a leader, erasure.

An index that names ``status`` forbids heap-only updates for every transition. ``ended`` is the
status once it is final and NULL before, so that claims and hand-backs touch no index and only the
one terminal write does (docs/decisions.md has the figures).
"""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = (
    "DROP INDEX skill_executions_skill",
    "DROP INDEX skill_executions_live",
    """
    ALTER TABLE skill_executions
        ADD COLUMN cancel_requested_at timestamptz,
        ADD COLUMN cancelled_by text,
        ADD COLUMN ended text GENERATED ALWAYS AS (
            CASE WHEN status IN ('success', 'error', 'timeout') THEN status END) STORED
    """,
    "CREATE INDEX skill_executions_skill ON skill_executions (skill_id, ended, id DESC)",
    "CREATE INDEX skill_executions_live ON skill_executions (id) WHERE ended IS NULL",
    # Half a page free: with 70 % filled a quarter of all updates found room in their page, so 45 %.
    """
    DO $$
    DECLARE
        part regclass;
    BEGIN
        FOR part IN SELECT inhrelid::regclass FROM pg_inherits
                     WHERE inhparent = 'skill_executions'::regclass LOOP
            EXECUTE format('ALTER TABLE %s SET (fillfactor = 50)', part);
        END LOOP;
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION make_execution_partitions(months_ahead integer) RETURNS void
    LANGUAGE plpgsql AS $$
    DECLARE
        month timestamp;  -- in UTC, as the ids are
        name text;
    BEGIN
        FOR step IN 0..months_ahead LOOP
            month := date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => step);
            name := 'skill_executions_' || to_char(month, 'YYYY_MM');
            IF to_regclass(name) IS NULL THEN
                EXECUTE format(
                    'CREATE TABLE %I PARTITION OF skill_executions FOR VALUES FROM (%L) TO (%L) '
                    'WITH (fillfactor = 50)',
                    name, execution_id_floor(month AT TIME ZONE 'UTC'),
                    execution_id_floor((month + interval '1 month') AT TIME ZONE 'UTC')
                );
            END IF;
        END LOOP;
    END $$
    """,
    """
    CREATE TABLE pauses (
        kind text NOT NULL CHECK (kind IN ('queue', 'skill', 'owner')),
        name text NOT NULL CHECK (name <> ''),
        paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        paused_by text NOT NULL,
        PRIMARY KEY (kind, name)
    )
    """,
    """
    CREATE TRIGGER pauses_epoch AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON pauses
        FOR EACH STATEMENT EXECUTE FUNCTION bump_registry_epoch()
    """,
    "ALTER TABLE skills ADD COLUMN concurrency_limit integer CHECK (concurrency_limit > 0)",
    """
    ALTER TABLE api_keys
        ADD COLUMN weight double precision NOT NULL DEFAULT 1
            CHECK (weight >= 0.01 AND weight <= 100)
    """,
    "DROP TRIGGER api_keys_epoch ON api_keys",
    """
    CREATE TRIGGER api_keys_epoch AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF
        name, key_hash, scopes, allowed_skills, concurrency_limit, rate_limit, weight, expires_at,
        revoked_at
        ON api_keys FOR EACH STATEMENT EXECUTE FUNCTION bump_registry_epoch()
    """,
    # How long its silence means nothing (older workers: as they were set by default), when it last
    # looked at its queues, and how many executions a second it ends of each.
    """
    ALTER TABLE workers
        ADD COLUMN lease_ms integer NOT NULL DEFAULT 12000 CHECK (lease_ms > 0),
        ADD COLUMN consumed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        ADD COLUMN rates jsonb NOT NULL DEFAULT '{}'
    """,
    """
    CREATE TABLE leader (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        worker_id text NOT NULL,
        until timestamptz NOT NULL
    )
    """,
    """
    CREATE TABLE erasures (
        id uuid PRIMARY KEY,
        owner text NOT NULL CHECK (owner <> ''),
        requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        requested_by text NOT NULL,
        finished_at timestamptz,
        removed jsonb NOT NULL DEFAULT '{}'
    )
    """,
)


def upgrade() -> None:
    """Change what the first revision made."""
    connection = op.get_bind()
    for statement in STATEMENTS:
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Refuse: what newer processes wrote would be lost."""
    raise NotImplementedError("revision 0002 can't be taken back; restore a backup instead")
