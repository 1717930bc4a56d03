//! Clients that go on sending after they were refused: they see why, and hold nothing for ever.

use std::time::Duration;

use onceward::plumbing::time::{instant, sleep};
use onceward_gateway::settings::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{ADDRESS, Ledger, front, listen, service, statuses};

const SECOND: Duration = Duration::from_secs(1);

/// Refused as soon as it is read.
const REFUSED: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 1000000000\r\n\r\n";

#[tokio::test]
async fn a_client_that_sends_all_before_it_reads_sees_every_refusal_of_the_front() {
    let running = listen(front(Limits { header_bytes: 300, url_bytes: 100, ..Limits::default() })).await;
    let long = "l".repeat(1000);
    for (head, status) in [
        (format!("POST /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        (format!("POST / HTTP/1.1\r\nHost: a\r\nLong: {long}\r\n\r\n"), 431),
        ("POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(), 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n".to_owned(), 422),
    ] {
        let bytes = [head.as_bytes(), &vec![b'x'; 20 << 20]].concat();
        assert_eq!(statuses(&running.send(&bytes).await), [status], "{head}");
    }
    assert_eq!(running.ledger.whole(), [""; 0]);
}

/// A client that was refused and has seen its answer.
struct Refused {
    client: DuplexStream,
    /// Stops the front.
    stop: oneshot::Sender<()>,
    /// Ends with the connection.
    ended: JoinHandle<()>,
}

async fn refused() -> Refused {
    let (mut client, server) = tokio::io::duplex(1024);
    let (stop, stopped) = oneshot::channel();
    let service = service(&std::sync::Arc::new(Ledger::default()));
    let ended = tokio::spawn(async move {
        let stop = async move { drop(stopped.await) };
        front(Limits::default()).serve_connection(server, ADDRESS, service, stop).await.unwrap();
    });
    client.write_all(REFUSED).await.unwrap();
    let mut answer = Vec::new();
    // The answer ends at once, and the connection does not.
    client.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", answer.escape_ascii());
    Refused { client, stop, ended }
}

impl Refused {
    /// How long the connection lasts while its client sends a byte after each pause.
    async fn lasts(mut self, pause: Duration) -> Duration {
        let since = instant();
        let sends = async {
            while self.client.write_all(b"x").await.is_ok() {
                sleep(pause).await;
            }
        };
        let ended = async {
            self.ended.await.unwrap();
            since.elapsed()
        };
        tokio::join!(sends, ended).1
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_on_sending_after_its_refusal_is_cut_off_after_a_while() {
    for pause in [Duration::from_millis(1), SECOND, 4 * SECOND] {
        assert_eq!(refused().await.lasts(pause).await, 30 * SECOND, "{pause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_after_its_refusal_is_not_waited_for_as_long() {
    assert_eq!(refused().await.lasts(30 * SECOND).await, 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_stop_leaves_a_client_that_goes_on_sending_one_more_second() {
    let mut refused = refused().await;
    for _ in 0..3 {
        refused.client.write_all(b"x").await.unwrap();
        sleep(SECOND).await;
    }
    let stop = std::mem::replace(&mut refused.stop, oneshot::channel().0);
    stop.send(()).unwrap();
    assert_eq!(refused.lasts(SECOND / 10).await, SECOND);
}
