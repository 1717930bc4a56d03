//! The side of the gateway that clients see: connections come in here, and clean requests go on to a service.
//!
//! What happens to a connection, in order:
//!
//! 1. It is accepted when there is a place for it; until then it waits in the kernel's queue.
//! 2. Where there is a certificate, TLS is spoken first.
//! 3. It is HTTP/2 if TLS agreed on that, or if it begins with HTTP/2's preface; otherwise it is HTTP/1.1.
//! 4. HTTP/1.1 goes through a guard, which passes on only what is strictly framed. What is not is answered with 400 (414,
//!    431 where it is too long) and ends the connection; the service never sees it. HTTP/2 requests that can mean two things
//!    are answered likewise, and their connection goes on.
//! 5. Each request gets its [`ClientAddress`](crate::client_address::ClientAddress) as an extension. Its [`Body`] breaks off
//!    where the client pauses for too long. After an answer with status 101, the guard lets all bytes pass.
//! 6. An answer that ends the connection while the client still sends is followed by a lingering close: what comes is read
//!    and thrown away for a while, so that the client sees the answer and not a reset.
//! 7. Asked to stop, it takes no new requests, and ends when those in flight are answered.

mod body;
mod chunks;
mod connection;
mod fields;
mod framing;
mod guard;
mod head;
mod http1_state;
mod linger;
mod listen;
mod refusal;
mod service;
mod stall;
mod streams;
mod timer;
pub mod tls;

#[cfg(test)]
mod properties;

pub use self::body::{Body, BodyError};
pub use self::connection::ConnectionError;
pub use self::listen::Ended;
pub use self::refusal::Refusal;
use crate::settings::Limits;

/// Takes connections, and hands on what they ask for.
#[derive(Debug, Clone)]
pub struct Front {
    /// How much is held at once, and for how long.
    pub limits: Limits,
    /// Where it is given, clients speak TLS.
    pub tls: Option<tls::Shown>,
}
