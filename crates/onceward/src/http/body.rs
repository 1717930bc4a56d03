//! Bodies: read whole up to a limit, or passed through as they are.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::HeaderMap;
use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::time::sleep;

/// A refusal reads this much of a body that nobody wants, so that the connection can be used again. It is what arrives
/// in one or two round trips; more than that costs the server more than a new connection costs the client.
pub(super) const DRAIN_BYTES: usize = 64 * 1024;
/// A refusal waits this long for such a body. It bounds what a slow sender can hold.
pub(super) const DRAIN_WAIT: Duration = Duration::from_secs(1);

pin_project_lite::pin_project! {
    /// A body that was read whole, or one that passes through untouched.
    ///
    /// The inner service gets it as its request body, and callers get it as their response body.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindProjected]
    #[derive(Debug)]
    enum Kind<B> {
        Whole { data: Bytes, trailers: Option<HeaderMap> },
        Passed { #[pin] body: B },
    }
}

impl<B> Body<B> {
    pub(super) fn passed(body: B) -> Self {
        Self { kind: Kind::Passed { body } }
    }

    pub(super) fn whole(whole: Whole) -> Self {
        Self { kind: Kind::Whole { data: whole.data, trailers: whole.trailers } }
    }
}

/// A body that was read to its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Whole {
    pub data: Bytes,
    pub trailers: Option<HeaderMap>,
}

impl From<Bytes> for Whole {
    fn from(data: Bytes) -> Self {
        Self { data, trailers: None }
    }
}

impl<B: HttpBody> HttpBody for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjected::Whole { data, trailers } => Poll::Ready(if data.has_remaining() {
                Some(Ok(Frame::data(std::mem::take(data))))
            } else {
                trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))
            }),
            // Where the data are `Bytes` already, as with hyper and axum, this copies nothing.
            KindProjected::Passed { body } => body
                .poll_frame(context)
                .map_ok(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole { data, trailers } => data.is_empty() && trailers.is_none(),
            Kind::Passed { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole { data, .. } => SizeHint::with_exact(data.len() as u64),
            Kind::Passed { body } => body.size_hint(),
        }
    }
}

/// What came of reading a body.
#[derive(Debug)]
pub(super) enum Read {
    /// All of it.
    Whole(Whole),
    /// It has more bytes than the limit; the rest was not read.
    TooLarge,
    /// It broke off.
    Broken,
}

/// Reads a body to its end, or to the limit. What announces more than the limit is not read at all.
pub(super) async fn read<B: HttpBody>(body: B, limit: usize) -> Read {
    if body.size_hint().lower() > limit as u64 {
        return Read::TooLarge;
    }
    let mut body = std::pin::pin!(body);
    let (mut first, mut more) = (Bytes::new(), BytesMut::new());
    let mut trailers: Option<HeaderMap> = None;
    loop {
        let frame = match std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
            None => break,
            Some(Err(_)) => return Read::Broken,
            Some(Ok(frame)) => frame,
        };
        match frame.into_data() {
            Ok(mut data) => {
                if first.len() + more.len() + data.remaining() > limit {
                    return Read::TooLarge;
                }
                // Most bodies come in one piece, which is then kept as it is.
                if first.is_empty() && more.is_empty() {
                    first = data.copy_to_bytes(data.remaining());
                } else {
                    more.extend_from_slice(&std::mem::take(&mut first));
                    more.extend_from_slice(&data.copy_to_bytes(data.remaining()));
                }
            }
            Err(frame) => {
                if let Ok(found) = frame.into_trailers() {
                    trailers.get_or_insert_default().extend(found);
                }
            }
        }
    }
    let data = if more.is_empty() { first } else { more.freeze() };
    Read::Whole(Whole { data, trailers })
}

/// Whether a connection can go on after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drained {
    /// Nothing is left of the request.
    Empty,
    /// Something is left, which could be mistaken for the next request.
    Rest,
}

/// Reads away what nobody wants, within limits.
pub(super) async fn drain<B: HttpBody>(body: B) -> Drained {
    if body.is_end_stream() {
        return Drained::Empty;
    }
    tokio::select! {
        biased;
        read = read(body, DRAIN_BYTES) => match read {
            Read::Whole(_) => Drained::Empty,
            Read::TooLarge | Read::Broken => Drained::Rest,
        },
        () = sleep(DRAIN_WAIT) => Drained::Rest,
    }
}
