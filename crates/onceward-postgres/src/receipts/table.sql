-- Onceward's receipt table, for PostgreSQL 12 or later. Put it into your own migrations, and run it as the owner of your
-- tables. Running it again changes nothing.
--
-- A handler whose effects are writes in this database calls one function, once, in the transaction that makes them:
--
--   SELECT {complete_plain}(operation, fence, status, headers, body)
--
-- `operation` and `fence` are the request's headers Onceward-Operation and Onceward-Fence. `headers` is a JSON array of pairs,
-- such as '[["content-type", "application/json"]]'; leave out what your server adds by itself. `body` is bytes: a driver that
-- sends text needs convert_to($5, 'UTF8').
--
-- The effects are then committed together with the answer, or not at all. An error means that this delivery of the request
-- must not commit:
--
--   OW001  fenced: the operation was voided or taken over meanwhile, or its fence is too old for a new row
--   OW002  another delivery of the request has completed it
--   OW003  another delivery of the request has moved its step
--
-- Let the error end the transaction. PostgreSQL cannot prevent a handler from catching it in a savepoint (a nested block of an
-- ORM, an EXCEPTION clause) and committing the rest: the work would be done although Onceward was promised that it never
-- will be.
--
-- Rights, with your own role names:
--
--   GRANT SELECT, INSERT, UPDATE ON {table_plain} TO handler;            -- the role of the handler
--   GRANT SELECT, INSERT, UPDATE, DELETE ON {table_plain} TO onceward;   -- the role in [routes.receipts] url
--
-- Both need USAGE on the schema. The functions run with the rights of their caller, and everybody may call them unless you
-- have revoked that. They have fixed names, so a schema has one receipt table.

CREATE TABLE IF NOT EXISTS {table} (
  -- Compared by its bytes: an index in a language's order can become wrong when the operating system is upgraded, and would
  -- then admit a second row of the same operation.
  operation text COLLATE "C" PRIMARY KEY,
  -- Microseconds since 1970. No transaction under a lower fence can commit any more.
  fence bigint NOT NULL CONSTRAINT fence_is_not_negative CHECK (fence >= 0),
  -- The last phase that is done, and JSON for a resume.
  point text CONSTRAINT point_has_1_to_64_bytes CHECK (octet_length(point) BETWEEN 1 AND 64),
  data text CONSTRAINT data_is_json_of_at_most_4096_bytes
    CHECK (data IS NULL OR (octet_length(data) <= 4096 AND data::json IS NOT NULL)),
  -- An outside call that was begun and is not done.
  entered text CONSTRAINT entered_has_1_to_64_bytes CHECK (octet_length(entered) BETWEEN 1 AND 64),
  entered_at timestamptz,
  dedup_until timestamptz,
  -- The answer: headers as a JSON array of pairs.
  status int CONSTRAINT status_is_200_to_599 CHECK (status BETWEEN 200 AND 599),
  headers text CONSTRAINT headers_are_a_json_array_of_pairs_of_strings CHECK (headers IS NULL
    OR (jsonb_typeof(headers::jsonb) = 'array'
      AND NOT jsonb_path_exists(headers::jsonb, 'strict $[*] ? (!(@.type() == "array" && @.size() == 2
        && @[0].type() == "string" && @[1].type() == "string"))'))),
  body bytea,
  at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Finds the rows that are old enough to be deleted.
CREATE INDEX IF NOT EXISTS {index} ON {table} (fence);

-- The rule of every step, for the three functions below: one upsert.
CREATE OR REPLACE FUNCTION {write}(operation text, fence bigint, after text, point text, data text, entered text,
  dedup interval, status int, headers text, body bytea)
RETURNS void LANGUAGE plpgsql AS $onceward$
#variable_conflict use_column
DECLARE
  moment CONSTANT timestamptz := clock_timestamp();
  -- Onceward deletes rows whose fence is older than two days. An owner from before must not make one again.
  oldest CONSTANT bigint := (extract(epoch FROM moment) * 1000000)::bigint - 24 * 3600 * 1000000::bigint;
  stored_fence bigint;
  stored_status int;
  stored_step text;
BEGIN
  IF operation IS NULL OR operation !~ '^[0-9a-f]{32}(-[0-9a-f]{1,16})?$' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = 'onceward: the operation must be the value of the request''s header Onceward-Operation';
  END IF;
  IF fence IS NULL OR fence < 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = 'onceward: the fence must be the value of the request''s header Onceward-Fence';
  END IF;
  IF num_nonnulls(point, entered, status) <> 1 THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = 'onceward: a checkpoint and an outside call need the name of their point, and an answer needs its status';
  END IF;
  IF dedup <= interval '0' THEN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
      MESSAGE = 'onceward: dedup is how long the receiver of the call recognises a repetition; pass null if it does not';
  END IF;

  IF fence <= oldest OR after IS NOT NULL THEN
    -- Only a row that is there may be written. It is locked, so that it is still there in the upsert.
    PERFORM FROM {table} AS stored WHERE stored.operation = {write_label}.operation FOR UPDATE;
    IF NOT FOUND AND fence <= oldest THEN
      RAISE EXCEPTION USING ERRCODE = 'OW001',
        MESSAGE = format('OW001: fenced: the operation %s has no row, and its fence is %s old, too old for a new row',
          operation, moment - to_timestamp(fence / 1000000.0)),
        HINT = 'The fence is a time by the clock of Onceward''s store. If the request is young, the clock of this database '
          'differs by a day.';
    ELSIF NOT FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'OW003',
        MESSAGE = format('OW003: the operation %s has no row, and this step comes after %L', operation, after),
        HINT = 'The first step of an operation comes after none: pass null. Roll this transaction back.';
    END IF;
  END IF;

  INSERT INTO {table} AS stored
      (operation, fence, point, data, entered, entered_at, dedup_until, status, headers, body, at)
    VALUES (operation, fence, point, data, entered, CASE WHEN entered IS NOT NULL THEN moment END, moment + dedup,
      status, headers, body, moment)
  ON CONFLICT (operation) DO UPDATE SET
      fence = excluded.fence,
      point = coalesce(excluded.point, stored.point),
      data = CASE WHEN excluded.point IS NULL THEN stored.data ELSE excluded.data END,
      entered = excluded.entered, entered_at = excluded.entered_at, dedup_until = excluded.dedup_until,
      status = excluded.status, headers = excluded.headers, body = excluded.body,
      at = excluded.at
    WHERE stored.fence <= excluded.fence AND stored.status IS NULL
      AND coalesce(stored.entered, stored.point) IS NOT DISTINCT FROM after;
  IF FOUND THEN
    RETURN;
  END IF;

  SELECT stored.fence, stored.status, coalesce(stored.entered, stored.point)
    INTO stored_fence, stored_status, stored_step
    FROM {table} AS stored WHERE stored.operation = {write_label}.operation;
  IF stored_fence > fence THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001',
      MESSAGE = format('OW001: fenced: the operation %s was voided or taken over under the fence %s, and this is %s',
        operation, stored_fence, fence),
      HINT = 'Roll this transaction back. Onceward decides what becomes of the operation.';
  ELSIF stored_status IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'OW002',
      MESSAGE = format('OW002: the operation %s was completed before, with the status %s', operation, stored_status),
      HINT = 'Roll this transaction back. Another delivery of the request has committed its answer, which the client gets.';
  ELSE
    RAISE EXCEPTION USING ERRCODE = 'OW003',
      MESSAGE = format('OW003: the operation %s is at the step %L, and this step comes after %L',
        operation, stored_step, after),
      HINT = 'Roll this transaction back. Another delivery of the request has moved the step.';
  END IF;
END
$onceward$;

-- A phase is done: call it in the transaction of the phase's own writes. `after` is the step that you were given or last wrote.
CREATE OR REPLACE FUNCTION {checkpoint}(operation text, fence bigint, point text, data text DEFAULT NULL,
  after text DEFAULT NULL)
RETURNS void LANGUAGE sql AS $onceward$
  SELECT {write}(operation, fence, after, point, data, NULL, NULL, NULL, NULL, NULL)
$onceward$;

-- All is done, and this is the answer: call it in the transaction of the last writes.
CREATE OR REPLACE FUNCTION {complete}(operation text, fence bigint, status int, headers text DEFAULT '[]',
  body bytea DEFAULT '', after text DEFAULT NULL)
RETURNS void LANGUAGE sql AS $onceward$
  SELECT {write}(operation, fence, after, NULL, NULL, NULL, NULL, status, coalesce(headers, '[]'), coalesce(body, ''))
$onceward$;

-- An outside call is about to be made: call it in a transaction of its own, and commit that first. `dedup` is how long the
-- receiver recognises a repetition under the same key; null if it does not.
CREATE OR REPLACE FUNCTION {enter}(operation text, fence bigint, point text, dedup interval DEFAULT NULL,
  after text DEFAULT NULL)
RETURNS void LANGUAGE sql AS $onceward$
  SELECT {write}(operation, fence, after, NULL, NULL, point, dedup, NULL, NULL, NULL)
$onceward$;

-- The functions find the table whatever the caller's search_path is.
DO $onceward$
DECLARE
  home CONSTANT text := (SELECT quote_ident(n.nspname) FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = '{table}'::regclass);
BEGIN
  EXECUTE 'ALTER FUNCTION {write}(text, bigint, text, text, text, text, interval, int, text, bytea) SET search_path = '
    || home || ', pg_temp';
  EXECUTE 'ALTER FUNCTION {checkpoint}(text, bigint, text, text, text) SET search_path = ' || home || ', pg_temp';
  EXECUTE 'ALTER FUNCTION {complete}(text, bigint, int, text, bytea, text) SET search_path = ' || home || ', pg_temp';
  EXECUTE 'ALTER FUNCTION {enter}(text, bigint, text, interval, text) SET search_path = ' || home || ', pg_temp';
END
$onceward$;
