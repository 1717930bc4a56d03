//! The length of SQLite's write-ahead log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rusqlite::Connection;
use rusqlite::hooks::Wal;

/// The length of the log in pages, as of the connection's last commit.
#[derive(Clone, Default)]
pub(crate) struct WalLength(Arc<AtomicU32>);

impl WalLength {
    pub(crate) fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let length = self.0.clone();
        connection.wal_hook(Some(move |_: &mut Wal, pages: i32| {
            length.store(pages.unsigned_abs(), Ordering::Relaxed);
            Ok(())
        }))
    }

    pub(crate) fn pages(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}
