//! Properties of the guard that hold however bytes are cut into reads.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::BytesMut;
use proptest::prelude::*;
use tokio::io::{AsyncRead, ReadBuf};

use super::guard::{Guard, Opened};
use super::head::HeadLimits;
use super::http1_state::Http1State;
use super::refusal::STAND_IN;

const LIMITS: HeadLimits = HeadLimits { head: 512, target: 128 };

/// Yields these pieces one by one, and then the end.
struct Pieces(VecDeque<Vec<u8>>);

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(mut piece) = self.0.pop_front() {
            let rest = piece.split_off(piece.len().min(buffer.remaining()));
            buffer.put_slice(&piece);
            if !rest.is_empty() {
                self.0.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// How a guard ended.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum End {
    Stream,
    Broken,
    Waits,
}

/// Cuts bytes into pieces of these lengths, over and over.
fn cut(bytes: &[u8], lengths: &[usize]) -> VecDeque<Vec<u8>> {
    let mut pieces = VecDeque::new();
    let mut rest = bytes;
    for length in lengths.iter().cycle() {
        let (piece, after) = rest.split_at((*length).min(rest.len()));
        if piece.is_empty() {
            break;
        }
        pieces.push_back(piece.to_vec());
        rest = after;
    }
    pieces
}

fn guard(pieces: VecDeque<Vec<u8>>, state: &Arc<Http1State>) -> Guard<Pieces> {
    let opened =
        Opened { io: Pieces(pieces), read: BytesMut::new(), stall: Duration::from_secs(1), place: None };
    Guard::http1(opened, LIMITS, Arc::clone(state))
}

/// Everything that a guard passes on, read with a buffer of this size.
fn passed(guard: &mut Guard<Pieces>, buffer_size: usize) -> (Vec<u8>, End) {
    let mut all = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    loop {
        let mut space = vec![0; buffer_size];
        let mut buffer = ReadBuf::new(&mut space);
        match Pin::new(&mut *guard).poll_read(&mut context, &mut buffer) {
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => return (all, End::Stream),
            Poll::Ready(Ok(())) => all.extend_from_slice(buffer.filled()),
            Poll::Ready(Err(_)) => return (all, End::Broken),
            Poll::Pending => return (all, End::Waits),
        }
    }
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let head = prop_oneof![
        Just("GET /a?b=c HTTP/1.1\r\nHost: a\r\n".to_owned()),
        Just("\r\nDELETE /x HTTP/1.0\r\n".to_owned()),
        "[a-z]{1,40}".prop_map(|path| format!("POST /{path} HTTP/1.1\r\nhost: a:80\r\nx-{path}: {path}\r\n")),
    ];
    let data = proptest::collection::vec(any::<u8>(), 0..64);
    let body = prop_oneof![
        Just(b"\r\n".to_vec()),
        data.clone().prop_map(|data| {
            [format!("Content-Length: {}\r\n\r\n", data.len()).as_bytes(), &data].concat()
        }),
        (proptest::collection::vec(data, 0..4), "(a: b\r\n){0,2}").prop_map(|(chunks, trailers)| {
            let mut body = b"Transfer-Encoding: chunked\r\n\r\n".to_vec();
            for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
                body.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
                body.extend_from_slice(chunk);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
            body
        }),
    ];
    (head, body)
        .prop_filter("HTTP/1.0 has no chunks", |(head, body)| {
            !(head.contains("1.0") && body.starts_with(b"Transfer"))
        })
        .prop_map(|(head, body)| [head.into_bytes(), body].concat())
}

proptest! {
    #[test]
    fn valid_requests_pass_unchanged_however_their_bytes_are_cut(
        requests in proptest::collection::vec(request(), 1..5),
        lengths in proptest::collection::vec(1_usize..200, 1..8),
        buffer_size in 1_usize..300,
    ) {
        let bytes = requests.concat();
        let mut guard = guard(cut(&bytes, &lengths), &Arc::default());
        prop_assert_eq!(passed(&mut guard, buffer_size), (bytes, End::Stream));
    }

    #[test]
    fn arbitrary_bytes_end_the_same_however_they_are_cut(
        good in proptest::collection::vec(request(), 0..2),
        bad in proptest::collection::vec(prop_oneof![
            Just(b"\r\n".to_vec()), Just(b"\n".to_vec()), Just(b"GET / HTTP/1.1\r\n".to_vec()),
            Just(b"post / HTTP/1.1\r\n".to_vec()), Just(b"Host: a\r\n".to_vec()), Just(b"Content-Length: 3\r\n".to_vec()),
            Just(b"Transfer-Encoding: chunked\r\n".to_vec()), Just(b"3\r\nabc\r\n".to_vec()), Just(b" ".to_vec()),
            proptest::collection::vec(any::<u8>(), 1..4),
        ], 0..8),
        lengths in proptest::collection::vec(1_usize..50, 1..8),
    ) {
        let bytes = [good.concat(), bad.concat()].concat();
        let whole = passed(&mut guard(cut(&bytes, &[bytes.len().max(1)]), &Arc::default()), 4096);
        let pieces = passed(&mut guard(cut(&bytes, &lengths), &Arc::default()), 4096);
        prop_assert_eq!(&whole, &pieces, "{}", bytes.escape_ascii());
        // What is passed on is what came, or a stand-in in its place.
        let believed = whole.0.strip_suffix(STAND_IN).unwrap_or(&whole.0);
        prop_assert!(bytes.starts_with(believed));
    }
}

const UPGRADE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";

#[test]
fn what_follows_a_request_for_an_upgrade_waits_for_the_answer_and_then_passes_raw() {
    let frames = b"\x81\x05hello\0\n";
    let state = Arc::new(Http1State::default());
    let mut guard = guard(cut(&[UPGRADE, frames].concat(), &[UPGRADE.len() + 3, 100]), &state);
    assert_eq!(passed(&mut guard, 4096), (UPGRADE.to_vec(), End::Waits));
    state.upgrade();
    assert_eq!(passed(&mut guard, 4096), (frames.to_vec(), End::Stream));
}
