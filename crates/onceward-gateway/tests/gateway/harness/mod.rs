//! What every test stands on: the gateway as a process, and a client that sees every byte. `tests/receipts` stands on it as well.
//!
//! Most tests begin with `Gateway::with_ledger`: a folder, an API that keeps a ledger (`ledger/`) and the gateway in front of it.
//! Tests of failing disks and clocks begin with `Gateway::with_faults`. To prove how often something was done, ask the ledger; to
//! see what the gateway knows, ask its admin listener (`admin.rs`). Waiting is always bounded (`wait.rs`).

mod admin;
mod client;
mod gateway;
mod http2;
mod message;
mod output;
mod port;
mod wait;

pub use client::{Client, read_head, try_charge};
pub use gateway::{Gateway, former, onceward};
pub use http2::http2;
pub use message::{Request, Response};
pub use output::Output;
pub use port::Port;
pub use wait::{LONGEST_WAIT, within};
