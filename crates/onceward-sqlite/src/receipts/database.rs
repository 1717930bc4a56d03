//! A user's database: how it is opened, and how a write becomes durable.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::error::Failure;
use crate::schema::APPLICATION_ID;

/// Opens a database that exists.
///
/// Each call opens it anew: a file that was replaced, as by a restored backup, is another one under the same name, and a void
/// in the old one would stop nobody.
pub(super) fn open(path: &Path, lock_wait: Duration) -> Result<Connection, Failure> {
    // No flag creates it, and nothing here changes its journal mode, which is for its owner to choose.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(lock_wait)?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        return Err(Failure::Words(format!(
            "{path:?} cannot be written: give this user the right to write the file and its directory"
        )));
    }
    let application: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    if application == APPLICATION_ID {
        return Err(Failure::Words(format!(
            "{path:?} is a store of Onceward's own: receipts belong into the database of the handler"
        )));
    }
    // A commit is then on the disk before it returns, in every journal mode. EXTRA is FULL, and the directory's sync after a
    // rollback journal was deleted, without which a power cut could bring the journal back and undo the commit.
    connection.pragma_update(None, "synchronous", "EXTRA")?;
    Ok(connection)
}

/// Writes in a transaction of its own. It begins with the write lock, so that it reads what the last writer has committed.
pub(super) fn write<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Connection) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = work(&transaction)?;
    // Dropped uncommitted, which a busy commit is too, it rolls back.
    transaction.commit()?;
    Ok(done)
}
