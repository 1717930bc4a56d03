//! A network that can be cut: a proxy on the loopback interface between a client and a server.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Where a connection is cut, counted from the message that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The message never reaches the server.
    Before,
    /// The server has it; its answer is lost.
    Sent,
    /// The server has answered, and so has done it; this many bytes of the answer reach the client.
    Answered {
        /// Bytes of the answer that still pass.
        bytes: usize,
    },
    /// The message is held back, and the connection stays open: nothing is answered until it is released.
    Stall,
    /// The server has it; its answer is held back, and the connection stays open until it is released.
    Unanswered,
}

/// Which bytes are waited for, and what happens then.
type Plan = Arc<Mutex<Option<(Vec<u8>, Cut)>>>;

/// A proxy in front of a server on this machine.
pub struct Wire {
    port: u16,
    server: Arc<AtomicU16>,
    plan: Plan,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct State {
    /// How often everything was cut.
    generation: u64,
    /// How many planned cuts have been made.
    made: u64,
    /// How many stalled connections were let go.
    released: u64,
    refusing: bool,
}

impl Wire {
    /// A proxy to a port of the loopback interface. It lives on the present runtime.
    pub async fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("there is a free port");
        let port = listener.local_addr().expect("a listener has an address").port();
        let (state, _) = watch::channel(State::default());
        let plan = Arc::new(Mutex::new(None));
        let server = Arc::new(AtomicU16::new(server));
        let wire = Self { port, server: server.clone(), plan: plan.clone(), state: state.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if state.borrow().refusing {
                    continue;
                }
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server.load(Ordering::SeqCst))).await
                else {
                    continue;
                };
                tokio::spawn(pass(client, upstream, plan.clone(), state.clone()));
            }
        });
        wire
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts the connection over which these bytes are sent next.
    pub fn arm(&self, message: impl AsRef<[u8]>, cut: Cut) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some((message.as_ref().to_vec(), cut));
    }

    /// Cuts every connection there is.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.generation += 1);
    }

    /// Leads new connections to another port of the loopback interface, as an address that moves to another machine.
    pub fn lead_to(&self, server: u16) {
        self.server.store(server, Ordering::SeqCst);
    }

    /// Lets no connection in any more.
    pub fn refuse(&self) {
        self.state.send_modify(|state| state.refusing = true);
    }

    /// Lets connections in again.
    pub fn accept(&self) {
        self.state.send_modify(|state| state.refusing = false);
    }

    /// Lets go of what is stalled.
    pub fn release(&self) {
        self.state.send_modify(|state| state.released += 1);
    }

    /// Returns when so many planned cuts have been made.
    pub async fn made(&self, cuts: u64) {
        let mut state = self.state.subscribe();
        state.wait_for(|state| state.made >= cuts).await.expect("the proxy lives as long as its owner");
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("port", &self.port).finish_non_exhaustive()
    }
}

/// Takes the plan if these bytes are what it waits for.
fn planned(plan: &Plan, bytes: &[u8]) -> Option<Cut> {
    let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
    let (message, cut) = plan.as_ref()?;
    let found = bytes.windows(message.len().max(1)).any(|window| window == message);
    let cut = *cut;
    found.then(|| {
        *plan = None;
        cut
    })
}

async fn pass(mut client: TcpStream, mut server: TcpStream, plan: Plan, state: watch::Sender<State>) {
    let mut watched = state.subscribe();
    let mut stalled = state.subscribe();
    let born = watched.borrow_and_update().generation;
    let (mut from_client, mut from_server) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut left: Option<usize> = None;
    let made = || state.send_modify(|state| state.made += 1);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(count @ 1..) = read else { return };
                let cut = planned(&plan, &from_client[..count]);
                match cut {
                    Some(Cut::Before) => return made(),
                    Some(Cut::Stall) => {
                        if !released(&state, &mut stalled, born).await {
                            return;
                        }
                    }
                    Some(Cut::Answered { bytes }) => left = Some(bytes),
                    Some(Cut::Sent | Cut::Unanswered) | None => {}
                }
                if server.write_all(&from_client[..count]).await.is_err() {
                    return;
                }
                if cut == Some(Cut::Sent) {
                    return made();
                }
                if cut == Some(Cut::Unanswered) && !released(&state, &mut stalled, born).await {
                    return;
                }
            }
            read = server.read(&mut from_server) => {
                let Ok(count @ 1..) = read else { return };
                let passed = left.map_or(count, |left| left.min(count));
                if client.write_all(&from_server[..passed]).await.is_err() {
                    return;
                }
                if left.is_some() {
                    return made();
                }
            }
            // Everything is cut, or the proxy is gone.
            () = generation_after(&mut watched, born) => return,
        }
    }
}

/// Makes a cut that holds something back, and waits for its release. Whether that came, and not the end of everything.
async fn released(state: &watch::Sender<State>, stalled: &mut watch::Receiver<State>, born: u64) -> bool {
    // Read first: a test that hears of the cut may release it at once.
    let before = stalled.borrow().released;
    state.send_modify(|state| state.made += 1);
    let end = stalled.wait_for(|state| state.released > before || state.generation != born).await;
    end.is_ok_and(|state| state.generation == born)
}

async fn generation_after(state: &mut watch::Receiver<State>, born: u64) {
    // An error says that there is no proxy any more.
    drop(state.wait_for(|state| state.generation != born).await);
}
