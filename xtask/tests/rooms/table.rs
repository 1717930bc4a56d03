//! What each room of ARCHITECTURE.md must not know.

use super::source::is_at;

/// A row of the table.
pub struct Room {
    /// Its first cell.
    pub row: &'static str,
    /// Its files and folders. The longest that fits a file is the one that counts.
    pub places: &'static [&'static str],
    /// Where no path of it may lead.
    pub forbidden: &'static [&'static str],
}

pub const ROOMS: &[Room] = &[
    Room {
        row: "`onceward/src/machine/`, `event.rs`",
        places: &["crates/onceward/src/machine/", "crates/onceward/src/event.rs"],
        forbidden: &[
            "futures_util",
            "http",
            "onceward::codec",
            "onceward::engine",
            "onceward::http",
            "onceward::memory",
            "onceward::store",
            "std::fs",
            "std::net",
            "std::sync::Mutex",
            "std::thread",
            "std::time::Instant",
            "std::time::SystemTime",
            "tokio",
            "tracing",
        ],
    },
    Room {
        row: "`onceward/src/record/`, `outcome.rs`, `codec/`",
        places: &[
            "crates/onceward/src/record/",
            "crates/onceward/src/outcome.rs",
            "crates/onceward/src/codec/",
        ],
        forbidden: &[
            "http",
            "onceward::engine",
            "onceward::http",
            "onceward::machine",
            "onceward::memory",
            "onceward::store",
            "std::fs",
            "tokio",
        ],
    },
    Room {
        row: "`onceward/src/key.rs`, `scope.rs`, `claim.rs`, `fingerprint/`, `id.rs`",
        places: &[
            "crates/onceward/src/key.rs",
            "crates/onceward/src/key/",
            "crates/onceward/src/scope.rs",
            "crates/onceward/src/claim.rs",
            "crates/onceward/src/fingerprint/",
            "crates/onceward/src/id.rs",
        ],
        forbidden: &[
            "http",
            "onceward::codec",
            "onceward::engine",
            "onceward::http",
            "onceward::machine",
            "onceward::memory",
            "onceward::record::Record",
            "onceward::record::State",
            "onceward::store",
            "tokio",
        ],
    },
    Room {
        row: "`onceward/src/time.rs`, `entropy.rs`, `secret.rs`, `digest.rs`",
        places: &[
            "crates/onceward/src/time.rs",
            "crates/onceward/src/entropy.rs",
            "crates/onceward/src/secret.rs",
            "crates/onceward/src/digest.rs",
        ],
        forbidden: &[
            "http",
            "onceward::claim",
            "onceward::codec",
            "onceward::engine",
            "onceward::event",
            "onceward::fingerprint",
            "onceward::http",
            "onceward::id",
            "onceward::machine",
            "onceward::memory",
            "onceward::record",
            "onceward::store",
        ],
    },
    Room {
        row: "`onceward/src/store.rs`, `memory.rs`",
        places: &["crates/onceward/src/store.rs", "crates/onceward/src/memory.rs"],
        forbidden: STORE_FORBIDDEN,
    },
    Room {
        row: "`onceward/src/store/driver.rs`",
        places: &["crates/onceward/src/store/driver.rs"],
        forbidden: STORE_FORBIDDEN,
    },
    Room {
        row: "`onceward/src/receipts/`",
        places: &["crates/onceward/src/receipts/"],
        forbidden: &[
            "http",
            "onceward::codec",
            "onceward::http",
            "onceward::machine",
            "onceward::memory",
            "std::fs",
            "std::net",
        ],
    },
    Room {
        row: "`onceward/src/engine/reconcile/`",
        places: &["crates/onceward/src/engine/reconcile/"],
        forbidden: &[
            "http",
            "onceward::codec",
            "onceward::http",
            "onceward::machine",
            "onceward::memory",
            "onceward::receipts",
            "std::fs",
            "std::net",
        ],
    },
    Room {
        row: "`onceward/src/engine/`",
        places: &["crates/onceward/src/engine/"],
        forbidden: &[
            "http",
            "http_body",
            "onceward::http",
            "onceward::memory",
            "std::fs",
            "std::net",
            "tower_service",
        ],
    },
    Room {
        row: "`onceward/src/http/`",
        places: &["crates/onceward/src/http/"],
        forbidden: &[
            "axum",
            "hyper",
            "onceward::codec",
            "onceward::machine",
            "onceward::memory",
            "onceward::store::Store",
            "std::fs",
            "std::net",
            "tokio::net",
        ],
    },
    Room {
        row: "`onceward-gateway/src/front/`",
        places: &["crates/onceward-gateway/src/front/"],
        forbidden: &[
            "onceward::engine",
            "onceward::key",
            "onceward::http::Routes",
            "onceward::http::header::IDEMPOTENCY_KEY",
            "onceward::store",
            "onceward_gateway::admin",
            "onceward_gateway::config",
            "onceward_gateway::gateway",
            "onceward_gateway::proxy",
            "onceward_gateway::stores",
        ],
    },
    Room {
        row: "`onceward-gateway/src/proxy/`",
        places: &["crates/onceward-gateway/src/proxy/"],
        forbidden: &[
            "onceward::engine",
            "onceward::http::header",
            "onceward::store",
            "onceward_gateway::telemetry",
            "onceward_gateway::admin",
            "onceward_gateway::config",
            "onceward_gateway::front",
            "onceward_gateway::gateway",
            "onceward_gateway::stores",
        ],
    },
    Room {
        row: "`onceward-gateway/src/config/`, `settings.rs`, `client_address.rs`",
        places: &[
            "crates/onceward-gateway/src/config/",
            "crates/onceward-gateway/src/settings.rs",
            "crates/onceward-gateway/src/client_address.rs",
        ],
        forbidden: &[
            "onceward::engine::Engine",
            "onceward_gateway::admin",
            "onceward_gateway::front",
            "onceward_gateway::gateway",
            "onceward_gateway::proxy",
            "onceward_gateway::running",
            "tokio",
        ],
    },
    Room {
        row: "`onceward-gateway/src/listener.rs`",
        places: &["crates/onceward-gateway/src/listener.rs"],
        forbidden: &[
            "http",
            "hyper",
            "onceward::engine",
            "onceward::http",
            "onceward_gateway::front",
            "onceward_gateway::proxy",
        ],
    },
    Room {
        row: "`onceward-gateway/src/http_client.rs`, `tls_roots.rs`",
        places: &["crates/onceward-gateway/src/http_client.rs", "crates/onceward-gateway/src/tls_roots.rs"],
        forbidden: &[
            "onceward::engine",
            "onceward::http",
            "onceward_gateway::config",
            "onceward_gateway::proxy",
            "onceward_gateway::settings",
        ],
    },
    Room {
        row: "`onceward-gateway/src/cli/`",
        places: &["crates/onceward-gateway/src/cli/", "crates/onceward-gateway/src/main.rs"],
        forbidden: &[
            "onceward::engine::Engine",
            "onceward_gateway::front",
            "onceward_gateway::gateway",
            "onceward_gateway::proxy",
            "onceward_postgres",
            "onceward_redis",
            "onceward_sqlite",
        ],
    },
    Room {
        row: "`onceward-gateway/src/check/`",
        places: &["crates/onceward-gateway/src/check/"],
        forbidden: &["onceward_gateway::cli", "onceward_postgres", "onceward_redis", "onceward_sqlite"],
    },
    Room {
        row: "`onceward-gateway/src/stores/`",
        places: &["crates/onceward-gateway/src/stores/"],
        forbidden: &[
            "hyper",
            "onceward_gateway::admin",
            "onceward_gateway::cli",
            "onceward_gateway::config",
            "onceward_gateway::front",
            "onceward_gateway::gateway",
            "onceward_gateway::proxy",
        ],
    },
    Room {
        row: "`onceward-gateway/src/admin/`",
        places: &["crates/onceward-gateway/src/admin/"],
        forbidden: &[
            "onceward::machine",
            "onceward_gateway::config",
            "onceward_gateway::gateway",
            "onceward_gateway::proxy",
            "onceward_gateway::stores",
            "onceward_postgres",
            "onceward_redis",
            "onceward_sqlite",
        ],
    },
    Room {
        row: "`onceward-gateway/src/telemetry/`",
        places: &["crates/onceward-gateway/src/telemetry/"],
        forbidden: &[
            "onceward::machine",
            "onceward_gateway::admin",
            "onceward_gateway::config",
            "onceward_gateway::gateway",
            "onceward_gateway::proxy",
            "onceward_postgres",
            "onceward_redis",
            "onceward_sqlite",
        ],
    },
    Room {
        row: "`onceward-gateway/src/gateway.rs`, `gateway/`, `running.rs`, `running/`, `serve.rs`, `demo/`",
        places: &[
            "crates/onceward-gateway/src/gateway.rs",
            "crates/onceward-gateway/src/gateway/",
            "crates/onceward-gateway/src/running.rs",
            "crates/onceward-gateway/src/running/",
            "crates/onceward-gateway/src/serve.rs",
            "crates/onceward-gateway/src/demo/",
            "crates/onceward-gateway/src/lib.rs",
        ],
        forbidden: &[
            "onceward::machine",
            "onceward::codec",
            "onceward_postgres",
            "onceward_redis",
            "onceward_sqlite",
        ],
    },
    Room { row: "`onceward-sqlite`", places: &["crates/onceward-sqlite/src/"], forbidden: DRIVER_FORBIDDEN },
    Room {
        row: "`onceward-postgres`",
        places: &["crates/onceward-postgres/src/"],
        forbidden: DRIVER_FORBIDDEN,
    },
    Room { row: "`onceward-redis`", places: &["crates/onceward-redis/src/"], forbidden: DRIVER_FORBIDDEN },
    Room {
        row: "`onceward-testkit`",
        places: &["crates/onceward-testkit/src/"],
        forbidden: &[
            "onceward::http",
            "onceward_gateway",
            "onceward_postgres",
            "onceward_redis",
            "onceward_sqlite",
        ],
    },
    Room { row: "`xtask`", places: &["xtask/src/"], forbidden: &["onceward::machine", "onceward_gateway"] },
    Room {
        row: "`onceward/src/lib.rs`, `setters.rs`",
        places: &["crates/onceward/src/lib.rs", "crates/onceward/src/setters.rs"],
        forbidden: &[],
    },
];

/// A store keeps and compares versions.
const STORE_FORBIDDEN: &[&str] = &[
    "http",
    "onceward::engine",
    "onceward::event",
    "onceward::http",
    "onceward::machine",
    "std::fs",
    "std::net",
];

/// A driver talks to its database, and to nothing that decides or serves.
const DRIVER_FORBIDDEN: &[&str] =
    &["http", "hyper", "onceward::event", "onceward::http", "onceward::machine"];

impl Room {
    /// Whether a file lies in this room.
    pub fn has(&self, file: &str) -> bool {
        let fit = |room: &Self| {
            room.places.iter().filter(|place| lies_in(file, place)).map(|place| place.len()).max()
        };
        let here = fit(self);
        here.is_some() && ROOMS.iter().filter_map(fit).max() == here
    }

    /// Whether a path leads where this room must not go.
    pub fn forbids(&self, path: &str) -> bool {
        self.forbidden.iter().any(|place| is_at(place, path))
    }
}

fn lies_in(file: &str, place: &str) -> bool {
    file.strip_prefix(place).is_some_and(|rest| rest.is_empty() || place.ends_with('/'))
}
