//! Clients that take their time, in a time that is paused.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use onceward::plumbing::time::{instant, sleep};
use onceward_gateway::settings::Limits;
use tokio::io::AsyncWriteExt as _;

use crate::protocols::post;
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
async fn a_connection_that_stays_idle_after_a_request_is_kept_for_longer_than_a_balancer_keeps_it() {
    let (mut client, ledger) = pipe(Limits::default(), 1024);
    client.write_all(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let started = instant();
    assert_eq!(statuses(&answers(&read_to_end(&mut client).await)), [200]);
    assert_eq!(started.elapsed(), Limits::default().idle_timeout);
    assert!(started.elapsed() > 60 * SECOND);
    assert_eq!(ledger.whole(), ["GET /1 "]);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_begins_when_the_idle_time_is_nearly_over_has_its_own_time() {
    let limits = Limits::default();
    let (mut client, ledger) = pipe(limits.clone(), 1024);
    client.write_all(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    for _ in 0..2 {
        sleep(limits.idle_timeout - SECOND).await;
        client.write_all(b"G").await.unwrap();
        sleep(limits.header_timeout - SECOND).await;
        client.write_all(b"ET /2 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    }
    // Begun and not ended, it is cut off at its own limit, not at the one between requests.
    sleep(SECOND).await;
    client.write_all(b"GET /3 HTTP/1.1\r\n").await.unwrap();
    let begun = instant();
    let (mut read, mut write) = tokio::io::split(client);
    let drip = async {
        while write.write_all(b"a: b\r\n").await.is_ok() {
            sleep(SECOND).await;
        }
    };
    let read = async { (read_to_end(&mut read).await, begun.elapsed()) };
    let ((), (got, after)) = tokio::join!(drip, read);
    assert_eq!(statuses(&answers(&got)), [200, 200, 200]);
    assert_eq!(after, limits.header_timeout);
    assert_eq!(ledger.whole(), ["GET /1 ", "GET /2 ", "GET /2 "]);
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
    assert_eq!(last.elapsed().as_secs(), Limits::default().idle_timeout.as_secs());
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
async fn an_http2_connection_that_asks_for_nothing_is_closed_like_one_that_says_nothing() {
    let (client, _) = pipe(Limits::default(), 1024);
    let started = instant();
    let (_sender, connection) =
        http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
    connection.await.unwrap();
    assert_eq!(started.elapsed(), Limits::default().header_timeout);
}

#[tokio::test(start_paused = true)]
async fn an_http2_connection_is_idle_from_the_end_of_its_last_answer_on() {
    let limits = Limits::default();
    let (client, ledger) = pipe(limits.clone(), 1024);
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
    let connection = tokio::spawn(connection);
    let answer = tokio::spawn(sender.send_request(post("http://a/wait", "")));
    ledger.entered.notified().await;
    // A request that takes long is no idleness: the connection takes others meanwhile, and after.
    sleep(3 * limits.idle_timeout).await;
    assert_eq!(sender.send_request(post("http://a/1", "")).await.unwrap().status(), 200);
    sleep(3 * limits.idle_timeout).await;
    ledger.go_on.notify_one();
    drop(answer.await.unwrap().unwrap().into_body().collect().await.unwrap());
    sleep(limits.idle_timeout - SECOND).await;
    assert_eq!(sender.send_request(post("http://a/2", "")).await.unwrap().status(), 200);
    let last = instant();
    connection.await.unwrap().unwrap();
    assert_eq!(last.elapsed(), limits.idle_timeout);
    assert_eq!(ledger.whole(), ["POST /1 ", "POST /wait ", "POST /2 "]);
}
