//! The conformance suite, for a store in a file.

use std::sync::Arc;

use onceward::store::{Due, Scan, Store, Which};
use onceward_sqlite::{Options, SqliteStore};
use onceward_testkit::VirtualClock;
use onceward_testkit::conformance::Specimen;

async fn in_a_file(clock: Arc<VirtualClock>) -> Specimen {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("onceward.db");
    let store = SqliteStore::open(&path, Options { clock, ..Options::default() }).unwrap();
    Specimen::new(store.clone()).keeping(directory).damaged_by(move |id| {
        let (path, store) = (path.clone(), store.clone());
        async move {
            // A list flushes the journal into the database.
            store.scan(Scan { which: Which::Due(Due::Leases), after: None, limit: 0 }).await.unwrap();
            let other = rusqlite::Connection::open(path).unwrap();
            let select = "SELECT record FROM operations WHERE id = ?1";
            let mut record: Vec<u8> =
                other.query_row(select, [&id.as_bytes()[..]], |row| row.get(0)).unwrap();
            *record.last_mut().unwrap() ^= 1;
            let update = "UPDATE operations SET record = ?2 WHERE id = ?1";
            assert_eq!(other.execute(update, (&id.as_bytes()[..], record)).unwrap(), 1);
        }
    })
}

onceward_testkit::conformance!(in_a_file, with damage);
