//! The conformance suite, for each way to use a PostgreSQL store.

use std::sync::Arc;

use crate::support::{damage, database, open, url};
use onceward_postgres::{Batching, Options, PostgresUrl, migrate};
use onceward_testkit::VirtualClock;
use onceward_testkit::conformance::Specimen;

async fn specimen(url: PostgresUrl, options: Options) -> Specimen {
    let store = open(&url, options).await;
    Specimen::new(store).damaged_by(move |id| {
        let schema = url.schema().to_owned();
        async move { damage(database(), &schema, id).await }
    })
}

mod batched {
    use super::*;

    async fn batched(clock: Arc<VirtualClock>) -> Specimen {
        specimen(url(""), Options { clock: Some(clock), ..Options::default() }).await
    }

    onceward_testkit::conformance!(batched, with damage);
}

mod unbatched {
    use super::*;

    async fn unbatched(clock: Arc<VirtualClock>) -> Specimen {
        let options = Options { clock: Some(clock), batching: Batching::Off, ..Options::default() };
        specimen(url("pool=2"), options).await
    }

    onceward_testkit::conformance!(unbatched, with damage);
}

mod unprepared {
    use super::*;

    async fn unprepared(clock: Arc<VirtualClock>) -> Specimen {
        specimen(url("prepared=off&pool=1"), Options { clock: Some(clock), ..Options::default() }).await
    }

    onceward_testkit::conformance!(unprepared, with damage);
}

mod partitioned {
    use super::*;

    async fn partitioned(clock: Arc<VirtualClock>) -> Specimen {
        specimen(url("partitions=8"), Options { clock: Some(clock), ..Options::default() }).await
    }

    onceward_testkit::conformance!(partitioned, with damage);
}

/// The statements for databases in which one statement writes one table only, on ordinary tables.
mod apart {
    use super::*;

    async fn apart(clock: Arc<VirtualClock>) -> Specimen {
        let plain = url("");
        migrate(&plain).await.unwrap();
        let text = format!("{}?schema={}&flavor=citus", database(), plain.schema());
        specimen(PostgresUrl::parse(&text).unwrap(), Options { clock: Some(clock), ..Options::default() })
            .await
    }

    onceward_testkit::conformance!(apart, with damage);
}
