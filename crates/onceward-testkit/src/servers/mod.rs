//! Real database servers, each in a directory of its own and on a free port of the loopback interface.
//!
//! Nothing needs to run before: the programs come from the machine's packages. Every server has a guardian, a small shell
//! that waits for the end of a pipe and then ends the server by its process id; the pipe ends with this process, however
//! that ends, so that no test leaves a server behind.

mod bouncer;
mod guardian;
mod postgres;
mod redis;
mod wire;

pub use bouncer::PgBouncer;
pub use postgres::{Postgres, PostgresOptions, Standby, shared_postgres};
pub use redis::{RedisCluster, RedisServer};
pub use wire::{Cut, Wire};

use std::net::TcpListener;

/// A free port. If another process takes it first, the server does not start, and another port is tried.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("the loopback interface has a free port");
    listener.local_addr().expect("a listener has an address").port()
}
