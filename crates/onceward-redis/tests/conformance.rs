//! The conformance suite, for a Redis server and for a cluster of three.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod common;

mod on_one_server {
    use super::common;
    use onceward_testkit::VirtualClock;
    use onceward_testkit::conformance::Specimen;
    use std::sync::Arc;

    async fn single(clock: Arc<VirtualClock>) -> Specimen {
        common::specimen(&common::server(), clock).await
    }

    onceward_testkit::conformance!(single, with damage);
}

mod on_a_cluster {
    use super::common;
    use onceward_testkit::VirtualClock;
    use onceward_testkit::conformance::Specimen;
    use std::sync::Arc;

    async fn cluster(clock: Arc<VirtualClock>) -> Specimen {
        common::specimen(&common::cluster(), clock).await
    }

    onceward_testkit::conformance!(cluster, with damage);
}
