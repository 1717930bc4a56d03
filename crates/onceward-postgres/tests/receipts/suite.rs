//! The suite, for handlers at every level of isolation, and through a pooler.

use std::sync::OnceLock;

use onceward_testkit::receipts::Specimen;
use onceward_testkit::servers::PgBouncer;

use crate::handler::table;
use crate::support::{name, port};

async fn at(isolation: &'static str) -> Specimen {
    let table = table().await;
    Specimen::new(table.receipts(), move || {
        let table = table.clone();
        async move { table.handler(isolation).await }
    })
}

mod read_committed {
    use super::*;

    async fn read_committed() -> Specimen {
        at("READ COMMITTED").await
    }

    onceward_testkit::receipt_conformance!(read_committed);
}

mod repeatable_read {
    use super::*;

    async fn repeatable_read() -> Specimen {
        at("REPEATABLE READ").await
    }

    onceward_testkit::receipt_conformance!(repeatable_read);
}

mod serializable {
    use super::*;

    async fn serializable() -> Specimen {
        at("SERIALIZABLE").await
    }

    onceward_testkit::receipt_conformance!(serializable);
}

mod pooled {
    use super::*;

    async fn pooled() -> Specimen {
        static BOUNCER: OnceLock<PgBouncer> = OnceLock::new();
        let bouncer = BOUNCER.get_or_init(|| PgBouncer::to(port()));
        let table = table().await;
        let receipts = table.receipts_at(&bouncer.url(name()));
        Specimen::new(receipts, move || {
            let table = table.clone();
            async move { table.handler("READ COMMITTED").await }
        })
    }

    onceward_testkit::receipt_conformance!(pooled);
}
