"""The first schema: skills, executions and what surrounds them.

``skill_executions`` is partitioned by id: a UUIDv7 begins with its time, so a month of ids is a
range, and retention drops partitions. Every partition leaves room (fillfactor) for the claim and
the finish of each row.
"""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = (
    """
    CREATE TABLE registry_epoch (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        epoch bigint NOT NULL
    )
    """,
    """
    INSERT INTO registry_epoch (epoch)
    VALUES ((extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    """,
    # Never below the clock, so that a restored backup can't repeat an epoch that caches have seen.
    """
    CREATE FUNCTION bump_registry_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE registry_epoch
           SET epoch = greatest(epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
        RETURN NULL;
    END $$
    """,
    """
    CREATE TABLE skills (
        id uuid PRIMARY KEY,
        api_key_id text NOT NULL CHECK (api_key_id <> ''),
        name text NOT NULL CHECK (name ~ '^@?[A-Za-z0-9_][A-Za-z0-9_.@/-]{0,98}$'),
        version text NOT NULL DEFAULT '1.0.0' CHECK (version ~ '^[0-9]+[.][0-9]+[.][0-9]+$'),
        description text NOT NULL DEFAULT '' CHECK (char_length(description) <= 1024),
        schema jsonb NOT NULL,
        kind text NOT NULL DEFAULT 'handler' CHECK (kind IN ('handler', 'instruction')),
        handler text,
        content text,
        content_hash text,
        content_source text,
        enabled boolean NOT NULL DEFAULT true,
        mode text NOT NULL DEFAULT 'on' CHECK (mode IN ('on', 'off', 'auto')),
        restore_mode text CHECK (restore_mode IN ('on', 'auto')),
        policy text NOT NULL DEFAULT 'auto' CHECK (policy IN ('auto', 'manual', 'hybrid')),
        source_provider text NOT NULL DEFAULT 'local'
            CHECK (source_provider IN ('skillsmp', 'skillssh', 'local')),
        tags text[] NOT NULL DEFAULT '{}',
        install_count integer NOT NULL DEFAULT 0 CHECK (install_count >= 0),
        timeout_ms integer CHECK (timeout_ms > 0),
        max_retries integer CHECK (max_retries >= 0),
        idempotent boolean,
        retry_on_timeout boolean,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        UNIQUE (api_key_id, name, version),
        CHECK (CASE kind WHEN 'handler' THEN handler IS NOT NULL ELSE content IS NOT NULL END)
    )
    """,
    """
    CREATE TRIGGER skills_epoch AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON skills
        FOR EACH STATEMENT EXECUTE FUNCTION bump_registry_epoch()
    """,
    """
    CREATE TABLE handlers (
        name text PRIMARY KEY,
        version text NOT NULL,
        description text NOT NULL,
        queue text NOT NULL CHECK (queue IN ('direct', 'sandbox')),
        timeout_ms integer,
        max_timeout_ms integer,
        timeout_input text,
        max_retries integer,
        idempotent jsonb NOT NULL,
        retry_on_timeout boolean NOT NULL,
        announced_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
    """,
    # By row: an announcement that changes nothing fires triggers by statement all the same.
    """
    CREATE TRIGGER handlers_epoch AFTER INSERT OR DELETE OR UPDATE OF
        version, queue, timeout_ms, max_timeout_ms, timeout_input, max_retries, idempotent,
        retry_on_timeout
        ON handlers FOR EACH ROW EXECUTE FUNCTION bump_registry_epoch()
    """,
    """
    CREATE TRIGGER handlers_truncate_epoch AFTER TRUNCATE ON handlers
        FOR EACH STATEMENT EXECUTE FUNCTION bump_registry_epoch()
    """,
    """
    CREATE TABLE settings (
        key text PRIMARY KEY,
        value jsonb NOT NULL,
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_by text NOT NULL
    )
    """,
    """
    CREATE TRIGGER settings_epoch AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON settings
        FOR EACH STATEMENT EXECUTE FUNCTION bump_registry_epoch()
    """,
    """
    CREATE TABLE api_keys (
        id text PRIMARY KEY CHECK (id NOT IN ('', 'system', 'anonymous')),
        name text NOT NULL,
        key_hash bytea NOT NULL UNIQUE CHECK (octet_length(key_hash) = 32),
        scopes text[] NOT NULL,
        allowed_skills text[],
        concurrency_limit integer CHECK (concurrency_limit > 0),
        rate_limit integer CHECK (rate_limit > 0),
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        expires_at timestamptz,
        revoked_at timestamptz,
        last_used_at timestamptz
    )
    """,
    """
    CREATE TRIGGER api_keys_epoch AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF
        name, key_hash, scopes, allowed_skills, concurrency_limit, rate_limit, expires_at,
        revoked_at
        ON api_keys FOR EACH STATEMENT EXECUTE FUNCTION bump_registry_epoch()
    """,
    """
    CREATE TABLE audit (
        id uuid PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        actor text NOT NULL,
        action text NOT NULL,
        target text NOT NULL,
        detail jsonb NOT NULL DEFAULT '{}'
    )
    """,
    """
    CREATE TABLE workers (
        id text PRIMARY KEY,
        host text NOT NULL,
        pid integer NOT NULL,
        queues text[] NOT NULL,
        handlers text[] NOT NULL,
        slots integer NOT NULL,
        running integer NOT NULL DEFAULT 0,
        sandbox jsonb,
        started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        stopped_at timestamptz
    )
    """,
    """
    CREATE TABLE skill_executions (
        id uuid PRIMARY KEY,
        skill_id uuid NOT NULL,
        skill_name text NOT NULL,
        skill_version text NOT NULL,
        handler text NOT NULL,
        api_key_id text NOT NULL,
        caller text NOT NULL,
        session_id text,
        provider text,
        model text,
        tool_call_id text,
        request_identity text,
        input_digest text,
        input jsonb NOT NULL,
        output jsonb,
        status text NOT NULL DEFAULT 'pending'
            CHECK (status IN ('pending', 'running', 'success', 'error', 'timeout')),
        error_code text,
        error_message text,
        attempt integer NOT NULL DEFAULT 0,
        attempts jsonb NOT NULL DEFAULT '[]',
        max_retries integer NOT NULL,
        timeout_ms integer,
        idempotent boolean NOT NULL,
        retry_on_timeout boolean NOT NULL,
        queue text NOT NULL CHECK (queue IN ('direct', 'sandbox')),
        priority text NOT NULL DEFAULT 'normal' CHECK (priority IN ('high', 'normal', 'low')),
        approval text CHECK (approval IN ('required', 'approved', 'rejected')),
        approved_by text,
        approved_at timestamptz,
        not_before timestamptz,
        expires_at timestamptz,
        retry_at timestamptz,
        execution_mode text,
        reason text,
        usage jsonb,
        traceparent text,
        rerun_of uuid,
        worker_id text,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        started_at timestamptz,
        finished_at timestamptz,
        duration_ms integer
    ) PARTITION BY RANGE (id)
    """,
    """
    CREATE TABLE skill_executions_default PARTITION OF skill_executions DEFAULT
        WITH (fillfactor = 70)
    """,
    # An owner's newest first; a skill's by status, newest first; the rows that still live.
    "CREATE INDEX skill_executions_owner ON skill_executions (api_key_id, id DESC)",
    "CREATE INDEX skill_executions_skill ON skill_executions (skill_id, status, id DESC)",
    """
    CREATE INDEX skill_executions_live ON skill_executions (id)
        WHERE status IN ('pending', 'running')
    """,
    """
    CREATE FUNCTION make_execution_partitions(months_ahead integer) RETURNS void
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
                    'WITH (fillfactor = 70)',
                    name, execution_id_floor(month AT TIME ZONE 'UTC'),
                    execution_id_floor((month + interval '1 month') AT TIME ZONE 'UTC')
                );
            END IF;
        END LOOP;
    END $$
    """,
    # The smallest UUIDv7 of a moment: RFC 9562, 5.7, 48 bits of Unix milliseconds first. Moments
    # outside 1970 to 9999, the infinite ones too, count as the nearest inside.
    """
    CREATE FUNCTION execution_id_floor(moment timestamptz) RETURNS uuid
    LANGUAGE sql IMMUTABLE AS $$
        SELECT (lpad(to_hex((extract(epoch FROM greatest(
                    least(moment, to_timestamp(253402300799)), to_timestamp(0)
                )) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
    $$
    """,
    "SELECT make_execution_partitions(3)",
    """
    CREATE TABLE execution_keys (
        owner text NOT NULL,
        key text NOT NULL,
        digest text NOT NULL,
        execution_id uuid NOT NULL,
        expires_at timestamptz NOT NULL,
        PRIMARY KEY (owner, key)
    )
    """,
    "CREATE INDEX execution_keys_expiry ON execution_keys (expires_at)",
)


def upgrade() -> None:
    """Create everything."""
    connection = op.get_bind()
    for statement in STATEMENTS:
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Refuse: there is nothing before the first schema."""
    raise NotImplementedError("the first revision can't be taken back; drop the database instead")
