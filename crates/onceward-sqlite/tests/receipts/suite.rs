//! The suite, in both kinds of journal.

use onceward_testkit::receipts::Specimen;

use crate::handler::{Shop, SqliteHandler};

fn in_mode(journal_mode: &str) -> Specimen {
    let shop = Shop::open(journal_mode);
    let path = shop.path.clone();
    Specimen::new(shop.receipts(), move || {
        let path = path.clone();
        async move { SqliteHandler::new(&path) }
    })
    .keeping(shop)
}

mod write_ahead {
    use super::*;

    async fn write_ahead() -> Specimen {
        in_mode("wal")
    }

    onceward_testkit::receipt_conformance!(write_ahead);
}

mod rollback_journal {
    use super::*;

    async fn rollback_journal() -> Specimen {
        in_mode("delete")
    }

    onceward_testkit::receipt_conformance!(rollback_journal);
}
