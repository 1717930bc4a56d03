//! The listener itself, over a real socket.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::*;

#[tokio::test]
async fn the_listener_answers_knows_its_peer_and_ends_when_told_although_a_client_stays() {
    let bench = Bench::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let state = bench.state(&address.to_string());
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(admin::serve(listener, state, async move { stopped.await.unwrap() }));

    let idle = TcpStream::connect(address).await.unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("api_idempotency_reserve_created_total"), "{answer}");

    stop.send(()).unwrap();
    served.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    drop(idle);
}
