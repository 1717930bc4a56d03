//! Ports that stay the same while the process behind them is started again.

use std::net::SocketAddr;

/// A port on which several processes can listen, one after the other. It is bound here, so that the system gives it to no other
/// program, and not listened on.
pub struct Port {
    pub address: SocketAddr,
    _bound: socket2::Socket,
}

impl Port {
    pub fn reserve() -> Self {
        let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        bound.set_reuse_address(true).unwrap();
        bound.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = bound.local_addr().unwrap().as_socket().unwrap();
        Self { address, _bound: bound }
    }
}
