//! Clients that take their time, in a time that is paused.

use std::time::Duration;

use onceward::time::{instant, sleep};
use onceward_gateway::settings::Limits;
use tokio::io::AsyncWriteExt as _;

use crate::{answers, pipe, read_to_end, statuses};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_is_closed() {
    let started = instant();
    let (mut client, _) = pipe(Limits::default(), 64);
    assert_eq!(read_to_end(&mut client).await, b"");
    assert_eq!(started.elapsed().as_secs(), Limits::default().header_timeout.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_head_that_drips_is_cut_off() {
    let (client, ledger) = pipe(Limits::default(), 64);
    let (mut read, mut write) = tokio::io::split(client);
    let started = instant();
    let drip = async {
        write.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nDrip: ").await.unwrap();
        while write.write_all(b".").await.is_ok() {
            sleep(SECOND).await;
        }
    };
    let ((), got) = tokio::join!(drip, read_to_end(&mut read));
    assert_eq!(got, b"");
    assert!(started.elapsed() <= Limits::default().header_timeout + 2 * SECOND);
    assert_eq!(ledger.whole(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_stays_idle_after_a_request_is_closed() {
    let (mut client, ledger) = pipe(Limits::default(), 1024);
    client.write_all(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let started = instant();
    assert_eq!(statuses(&answers(&read_to_end(&mut client).await)), [200]);
    assert_eq!(started.elapsed().as_secs(), Limits::default().header_timeout.as_secs());
    assert_eq!(ledger.whole(), ["GET /1 "]);
}

#[tokio::test(start_paused = true)]
async fn each_head_of_a_connection_has_the_whole_time_from_when_it_is_waited_for() {
    let (mut client, ledger) = pipe(Limits::default(), 1024);
    let limit = Limits::default().header_timeout;
    // Each comes while the time of an earlier one still runs, and is half a head when that is over.
    let mut last = instant();
    for pause in [Duration::ZERO, limit - SECOND, limit - SECOND] {
        client.write_all(b"GET /1 HTTP/1.1\r\n").await.unwrap();
        sleep(pause).await;
        client.write_all(b"Host: a\r\n\r\n").await.unwrap();
        last = instant();
        sleep(SECOND).await;
    }
    assert_eq!(statuses(&answers(&read_to_end(&mut client).await)), [200, 200, 200]);
    assert_eq!(last.elapsed().as_secs(), limit.as_secs());
    assert_eq!(ledger.whole().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_pauses_too_long_breaks_off() {
    let (mut client, ledger) = pipe(Limits::default(), 1024);
    client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n").await.unwrap();
    for _ in 0..8 {
        // Slow is not paused: together this takes far longer than the limit.
        sleep(Limits::default().body_timeout - SECOND).await;
        client.write_all(b"x").await.unwrap();
    }
    assert_eq!(statuses(&answers(&read_to_end(&mut client).await)), [422]);
    assert_eq!(ledger.whole(), [""; 0]);
    assert_eq!(
        ledger.broken(),
        ["the request's body paused for longer than 30s: send it without such pauses"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_being_answered_is_not_timed_out() {
    let (mut client, ledger) = pipe(Limits::default(), 1024);
    client.write_all(b"GET /wait HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    ledger.entered.notified().await;
    sleep(10 * Limits::default().header_timeout).await;
    ledger.go_on.notify_one();
    assert_eq!(statuses(&answers(&read_to_end(&mut client).await)), [200]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_take_its_answer_is_cut_off() {
    let (mut client, ledger) = pipe(Limits::default(), 64);
    client.write_all(b"GET /answer HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    sleep(Limits::default().body_timeout + SECOND).await;
    // It got what the pipe holds, and then the end.
    assert_eq!(read_to_end(&mut client).await.len(), 64);
    assert_eq!(ledger.whole(), ["GET /answer "]);
}

#[tokio::test(start_paused = true)]
async fn an_http2_connection_that_nobody_uses_is_closed() {
    let (mut client, _) = pipe(Limits::default(), 1024);
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let started = instant();
    read_to_end(&mut client).await;
    assert!(started.elapsed() <= 3 * Limits::default().header_timeout);
}
