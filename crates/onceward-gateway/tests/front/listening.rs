//! Many connections, one listener, and its end.

use onceward_gateway::front::Ended;
use onceward_gateway::settings::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{answers, front, listen, listen_with, read_to_end, statuses};

const LAST: &[u8] = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const WAIT: &[u8] = b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n";

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_until_another_ends() {
    let running = listen(front(Limits { connections: 1, ..Limits::default() })).await;
    let mut first = running.connect().await;
    first.write_all(WAIT).await.unwrap();
    running.ledger.entered.notified().await;

    let mut second = running.connect().await;
    second.write_all(LAST).await.unwrap();
    // The first is answered twice over before the second is even seen.
    running.ledger.go_on.notify_one();
    first.write_all(WAIT).await.unwrap();
    running.ledger.entered.notified().await;
    assert_eq!(running.ledger.whole(), ["GET /wait "]);
    running.ledger.go_on.notify_one();
    first.write_all(b"GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    assert_eq!(statuses(&answers(&read_to_end(&mut first).await)), [200, 200, 200]);

    assert_eq!(statuses(&answers(&read_to_end(&mut second).await)), [200]);
    assert_eq!(running.ledger.whole(), ["GET /wait ", "GET /wait ", "GET /end ", "GET /last "]);
}

#[tokio::test]
async fn a_panic_ends_its_connection_and_no_other() {
    let running = listen(front(Limits { connections: 1, ..Limits::default() })).await;
    for _ in 0..3 {
        let mut stream = running.connect().await;
        stream.write_all(b"GET /panic HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        assert_eq!(read_to_end(&mut stream).await, b"");
    }
    assert_eq!(statuses(&running.send(LAST).await), [200]);
}

#[tokio::test]
async fn a_stop_waits_for_the_request_in_flight_and_takes_no_other() {
    let running = listen(front(Limits::default())).await;
    // One that is idle, one that has begun a head, and one in flight.
    let mut idle = running.connect().await;
    idle.write_all(b"GET /idle HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"GET /idle ") {
        assert_ne!(idle.read_buf(&mut answer).await.unwrap(), 0);
    }
    let mut begun = running.connect().await;
    begun.write_all(b"GET /begun HTTP/1.1\r\n").await.unwrap();
    let mut busy = running.connect().await;
    busy.write_all(WAIT).await.unwrap();
    running.ledger.entered.notified().await;

    running.stop.send(()).unwrap();
    assert_eq!(read_to_end(&mut idle).await, b"");
    let mut rest = Vec::new();
    // Whether it ends or is reset, its head was not taken for a request.
    drop(begun.read_to_end(&mut rest).await);
    assert_eq!(rest, b"");
    assert!(!running.ended.is_finished());
    assert!(tokio::net::TcpStream::connect(running.address).await.is_err());

    running.ledger.go_on.notify_one();
    let got = answers(&read_to_end(&mut busy).await);
    assert_eq!(statuses(&got), [200]);
    assert!(got[0].head.contains("\r\nconnection: close"), "{got:?}");
    assert_eq!(running.ended.await.unwrap(), Ended::Drained);
}

#[tokio::test]
async fn a_stop_cuts_off_what_takes_longer_than_the_grace() {
    let running = listen_with(front(Limits::default()), std::time::Duration::ZERO).await;
    let mut busy = running.connect().await;
    busy.write_all(WAIT).await.unwrap();
    running.ledger.entered.notified().await;
    running.stop.send(()).unwrap();
    assert_eq!(running.ended.await.unwrap(), Ended::CutOff { connections: 1 });
    assert_eq!(read_to_end(&mut busy).await, b"");
    assert_eq!(running.ledger.whole(), [""; 0]);
}
