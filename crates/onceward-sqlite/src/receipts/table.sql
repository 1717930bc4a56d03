-- Onceward's receipt table, for SQLite 3.35 or later with its JSON functions. Put it into your own migrations, in one
-- transaction. Running it again keeps the table, and makes the views anew.
--
-- A handler whose effects are writes in this database makes one insert, once, in the transaction that makes them:
--
--   INSERT INTO onceward_complete (operation, fence, status, headers, body) VALUES (?, ?, ?, ?, ?)
--
-- `operation` and `fence` are the request's headers Onceward-Operation and Onceward-Fence. `headers` is a JSON array of pairs,
-- such as [["content-type", "application/json"]]; leave out what your server adds by itself. `body` is bytes or text.
--
-- The effects are then committed together with the answer, or not at all. An error means that this delivery of the request
-- must not commit. SQLite has then rolled its transaction back, and the error's text begins with a code:
--
--   OW001  fenced: the operation was voided or taken over meanwhile, or its fence is too old for a new row
--   OW002  another delivery of the request has completed it
--   OW003  another delivery of the request has moved its step
--
-- Let the error end the request. A handler that catches it and goes on writing begins a new transaction, and would do a part of
-- the work that Onceward was promised never will be done.
--
-- Times are microseconds since 1970. The gateway must be able to write this file and its directory.

CREATE TABLE IF NOT EXISTS {table} (
  operation TEXT NOT NULL PRIMARY KEY,
  -- Microseconds since 1970. No transaction under a lower fence can commit any more.
  fence INTEGER NOT NULL CHECK (typeof(fence) = 'integer' AND fence >= 0),
  -- The last phase that is done, and JSON for a resume.
  point TEXT,
  data TEXT,
  -- An outside call that was begun and is not done.
  entered TEXT,
  entered_at INTEGER,
  dedup_until INTEGER,
  -- The answer: headers as a JSON array of pairs.
  status INTEGER,
  headers TEXT,
  body BLOB,
  at INTEGER NOT NULL DEFAULT ({now})
);

-- Finds the rows that are old enough to be deleted.
CREATE INDEX IF NOT EXISTS {index} ON {table} (fence);

-- The rule of every step, for the three views below.
DROP VIEW IF EXISTS onceward_write;
CREATE VIEW onceward_write AS
  SELECT NULL AS operation, NULL AS fence, NULL AS after, NULL AS point, NULL AS data, NULL AS entered, NULL AS dedup,
    NULL AS status, NULL AS headers, NULL AS body WHERE 0;
CREATE TRIGGER onceward_write_row INSTEAD OF INSERT ON onceward_write BEGIN
  SELECT RAISE(ROLLBACK, 'onceward: the operation must be the value of the request''s header Onceward-Operation')
    WHERE typeof(NEW.operation) <> 'text' OR length(NEW.operation) < 32
      OR substr(NEW.operation, 1, 32) GLOB '*[^0-9a-f]*'
      OR (length(NEW.operation) > 32 AND (substr(NEW.operation, 33, 1) <> '-'
        OR length(NEW.operation) NOT BETWEEN 34 AND 49 OR substr(NEW.operation, 34) GLOB '*[^0-9a-f]*'));
  SELECT RAISE(ROLLBACK, 'onceward: the fence must be the value of the request''s header Onceward-Fence')
    WHERE NEW.fence IS NULL OR CAST(CAST(NEW.fence AS INTEGER) AS TEXT) <> CAST(NEW.fence AS TEXT)
      OR CAST(NEW.fence AS INTEGER) < 0;
  SELECT RAISE(ROLLBACK, 'onceward: `after` must be the name of a step, or null')
    WHERE typeof(NEW.after) NOT IN ('text', 'null');
  SELECT RAISE(ROLLBACK, 'onceward: a checkpoint and an outside call need the name of their point, and an answer its status')
    WHERE (NEW.point IS NOT NULL) + (NEW.entered IS NOT NULL) + (NEW.status IS NOT NULL) <> 1;
  SELECT RAISE(ROLLBACK, 'onceward: the name of a point must have 1 to 64 bytes')
    WHERE NEW.status IS NULL AND (typeof(coalesce(NEW.point, NEW.entered)) <> 'text'
      OR length(CAST(coalesce(NEW.point, NEW.entered) AS BLOB)) NOT BETWEEN 1 AND 64);
  SELECT RAISE(ROLLBACK, 'onceward: the data must be JSON of at most 4096 bytes')
    WHERE NEW.data IS NOT NULL AND (typeof(NEW.data) <> 'text' OR length(CAST(NEW.data AS BLOB)) > 4096
      OR NOT json_valid(NEW.data));
  SELECT RAISE(ROLLBACK, 'onceward: dedup is for how many seconds the receiver of the call recognises a repetition; null if it does not')
    WHERE NEW.dedup IS NOT NULL AND (typeof(NEW.dedup) NOT IN ('integer', 'real') OR NOT NEW.dedup BETWEEN 0.000001 AND 1e9);
  SELECT RAISE(ROLLBACK, 'onceward: the status must be a number from 200 to 599')
    WHERE NEW.status IS NOT NULL AND (typeof(NEW.status) <> 'integer' OR NEW.status NOT BETWEEN 200 AND 599);
  SELECT RAISE(ROLLBACK, 'onceward: the headers must be a JSON array of pairs of strings')
    WHERE NEW.headers IS NOT NULL AND CASE WHEN typeof(NEW.headers) <> 'text' OR NOT json_valid(NEW.headers) THEN 1
      WHEN json_type(NEW.headers) <> 'array' THEN 1
      ELSE EXISTS (SELECT 1 FROM json_each(NEW.headers) AS pair WHERE CASE WHEN pair.type <> 'array' THEN 1
        WHEN json_array_length(pair.value) <> 2 THEN 1
        ELSE json_type(pair.value, '$[0]') <> 'text' OR json_type(pair.value, '$[1]') <> 'text' END) END;
  SELECT RAISE(ROLLBACK, 'onceward: the body must be bytes or text')
    WHERE typeof(NEW.body) NOT IN ('null', 'blob', 'text');

  SELECT CASE
      WHEN stored.fence > CAST(NEW.fence AS INTEGER)
        THEN RAISE(ROLLBACK, 'OW001: fenced: the operation was voided or taken over under a higher fence')
      WHEN stored.status IS NOT NULL
        THEN RAISE(ROLLBACK, 'OW002: another delivery of the request has completed the operation, and the client gets its answer')
      WHEN coalesce(stored.entered, stored.point) IS NOT NEW.after
        THEN RAISE(ROLLBACK, 'OW003: the operation is at another step than `after`: another delivery of the request has moved it')
    END
    FROM {table} AS stored WHERE stored.operation = NEW.operation;
  -- Onceward deletes rows whose fence is older than two days. An owner from before must not make one again.
  SELECT CASE
      WHEN CAST(NEW.fence AS INTEGER) <= {now} - 24 * 3600 * 1000000
        THEN RAISE(ROLLBACK, 'OW001: fenced: the operation has no row, and its fence is too old for a new one. The fence is a time by the clock of Onceward''s store: if the request is young, the clock of this machine differs by a day')
      WHEN NEW.after IS NOT NULL
        THEN RAISE(ROLLBACK, 'OW003: the operation has no row, and this step comes after another one. The first step comes after none: null')
    END
    WHERE NOT EXISTS (SELECT 1 FROM {table} AS stored WHERE stored.operation = NEW.operation);

  INSERT INTO {table} (operation, fence, point, data, entered, entered_at, dedup_until, status, headers, body, at)
    VALUES (NEW.operation, CAST(NEW.fence AS INTEGER), NEW.point, NEW.data, NEW.entered,
      CASE WHEN NEW.entered IS NOT NULL THEN {now} END, {now} + CAST(NEW.dedup * 1000000 AS INTEGER),
      NEW.status, NEW.headers, CAST(NEW.body AS BLOB), {now})
    ON CONFLICT (operation) DO UPDATE SET
      fence = excluded.fence,
      point = coalesce(excluded.point, point),
      data = CASE WHEN excluded.point IS NULL THEN data ELSE excluded.data END,
      entered = excluded.entered, entered_at = excluded.entered_at, dedup_until = excluded.dedup_until,
      status = excluded.status, headers = excluded.headers, body = excluded.body,
      at = excluded.at;
END;

-- A phase is done: insert it in the transaction of the phase's own writes. `after` is the step that you were given or last
-- wrote.
DROP VIEW IF EXISTS onceward_checkpoint;
CREATE VIEW onceward_checkpoint AS
  SELECT NULL AS operation, NULL AS fence, NULL AS point, NULL AS data, NULL AS after WHERE 0;
CREATE TRIGGER onceward_checkpoint_row INSTEAD OF INSERT ON onceward_checkpoint BEGIN
  SELECT RAISE(ROLLBACK, 'onceward: a checkpoint needs the name of its point') WHERE NEW.point IS NULL;
  INSERT INTO onceward_write (operation, fence, after, point, data)
    VALUES (NEW.operation, NEW.fence, NEW.after, NEW.point, NEW.data);
END;

-- All is done, and this is the answer: insert it in the transaction of the last writes.
DROP VIEW IF EXISTS onceward_complete;
CREATE VIEW onceward_complete AS
  SELECT NULL AS operation, NULL AS fence, NULL AS status, NULL AS headers, NULL AS body, NULL AS after WHERE 0;
CREATE TRIGGER onceward_complete_row INSTEAD OF INSERT ON onceward_complete BEGIN
  SELECT RAISE(ROLLBACK, 'onceward: an answer needs its status') WHERE NEW.status IS NULL;
  INSERT INTO onceward_write (operation, fence, after, status, headers, body)
    VALUES (NEW.operation, NEW.fence, NEW.after, NEW.status, coalesce(NEW.headers, '[]'), coalesce(NEW.body, x''));
END;

-- An outside call is about to be made: insert it in a transaction of its own, and commit that first. `dedup` is for how many
-- seconds the receiver recognises a repetition under the same key; null if it does not.
DROP VIEW IF EXISTS onceward_enter;
CREATE VIEW onceward_enter AS
  SELECT NULL AS operation, NULL AS fence, NULL AS point, NULL AS dedup, NULL AS after WHERE 0;
CREATE TRIGGER onceward_enter_row INSTEAD OF INSERT ON onceward_enter BEGIN
  SELECT RAISE(ROLLBACK, 'onceward: an outside call needs the name of its point') WHERE NEW.point IS NULL;
  INSERT INTO onceward_write (operation, fence, after, entered, dedup)
    VALUES (NEW.operation, NEW.fence, NEW.after, NEW.point, NEW.dedup);
END;
