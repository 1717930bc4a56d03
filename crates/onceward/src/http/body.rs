//! Bodies: read whole up to a limit, or passed through as they are.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::HeaderMap;
use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;

use super::held::Drawn;
use crate::engine::PassThroughEntry;
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
        // In boxes is what seldom is: bodies are moved from hand to hand a dozen times.
        Whole { data: Bytes, trailers: Option<Box<HeaderMap>>, drawn: Drawn },
        Passed { #[pin] body: B },
        Entered { #[pin] body: B, entry: Option<Arc<PassThroughEntry>> },
        Copied { #[pin] body: B, copied: Box<Copied> },
    }
}

impl<B> Body<B> {
    pub(super) fn passed(body: B) -> Self {
        Self { kind: Kind::Passed { body } }
    }

    /// Passes through, and keeps its request's entry until it has been read or dropped.
    pub(super) fn entered(body: B, entry: Option<Arc<PassThroughEntry>>) -> Self {
        Self { kind: Kind::Entered { body, entry } }
    }

    pub(super) fn whole(whole: Whole) -> Self {
        Self::held(whole, Drawn::default())
    }

    /// A request's body, with the room that it takes until it is sent or dropped.
    pub(super) fn held(whole: Whole, drawn: Drawn) -> Self {
        Self { kind: Kind::Whole { data: whole.data, trailers: whole.trailers.map(Box::new), drawn } }
    }
}

/// A body that is there whole, for answers that a server around this layer gives itself.
impl<B> From<Bytes> for Body<B> {
    fn from(data: Bytes) -> Self {
        Self::whole(data.into())
    }
}

impl<B: HttpBody> Body<B> {
    /// Passes through, and is copied on the way.
    pub(super) fn copied(body: B, mut copied: Copied) -> Self {
        if body.is_end_stream() {
            copied.end();
        }
        Self { kind: Kind::Copied { body, copied: Box::new(copied) } }
    }
}

/// The copy of a body that passes through. It is handed over at its end, and forgotten where it breaks off or does not fit.
#[derive(Debug)]
pub(super) struct Copied {
    pieces: Vec<Bytes>,
    limit: usize,
    bytes: usize,
    drawn: Drawn,
    whole: Option<oneshot::Sender<(Whole, Drawn)>>,
}

impl Copied {
    pub(super) fn new(limit: usize, drawn: Drawn, whole: oneshot::Sender<(Whole, Drawn)>) -> Self {
        Self { pieces: Vec::new(), limit, bytes: 0, drawn, whole: Some(whole) }
    }

    fn add(&mut self, data: &Bytes) {
        if self.whole.is_none() {
            return;
        }
        self.bytes = self.bytes.saturating_add(data.len());
        if self.bytes > self.limit || self.drawn.reach(self.bytes).is_err() {
            return self.forget();
        }
        self.pieces.push(data.clone());
    }

    fn forget(&mut self) {
        self.whole = None;
        self.pieces = Vec::new();
        self.drawn = Drawn::default();
    }

    fn end(&mut self) {
        if let Some(whole) = self.whole.take() {
            let data = match &self.pieces[..] {
                [only] => only.clone(),
                pieces => pieces.concat().into(),
            };
            self.pieces = Vec::new();
            // Whoever wanted it may be gone.
            drop(whole.send((data.into(), std::mem::take(&mut self.drawn))));
        }
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
            KindProjected::Whole { data, trailers, .. } => Poll::Ready(if data.has_remaining() {
                Some(Ok(Frame::data(std::mem::take(data))))
            } else {
                trailers.take().map(|trailers| Ok(Frame::trailers(*trailers)))
            }),
            // Where the data are `Bytes` already, as with hyper and axum, this copies nothing.
            KindProjected::Passed { body } | KindProjected::Entered { body, .. } => body
                .poll_frame(context)
                .map_ok(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))),
            KindProjected::Copied { mut body, copied } => {
                let frame = std::task::ready!(body.as_mut().poll_frame(context));
                let frame = frame.map(|frame| {
                    frame.map(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining())))
                });
                match &frame {
                    Some(Ok(frame)) => frame.data_ref().into_iter().for_each(|data| copied.add(data)),
                    Some(Err(_)) => copied.forget(),
                    None => copied.end(),
                }
                // A reader that sees the end coming does not ask for it.
                if body.is_end_stream() {
                    copied.end();
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole { data, trailers, .. } => data.is_empty() && trailers.is_none(),
            Kind::Passed { body } | Kind::Entered { body, .. } | Kind::Copied { body, .. } => {
                body.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole { data, trailers: None, .. } => SizeHint::with_exact(data.len() as u64),
            // Over HTTP/1 only a body whose length is not told can have trailers.
            Kind::Whole { data, trailers: Some(_), .. } => {
                let mut hint = SizeHint::new();
                hint.set_lower(data.len() as u64);
                hint
            }
            Kind::Passed { body } | Kind::Entered { body, .. } | Kind::Copied { body, .. } => {
                body.size_hint()
            }
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
    /// There is no room to hold it.
    NoRoom,
}

/// Reads a body to its end, or to the limit. What announces more than the limit, or than there is room for, is not read at
/// all.
pub(super) async fn read<B: HttpBody>(body: B, limit: usize, drawn: &mut Drawn) -> Read {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Read::TooLarge;
    }
    if drawn.reach(announced).is_err() {
        return Read::NoRoom;
    }
    let mut body = std::pin::pin!(body);
    let (mut first, mut more) = (Bytes::new(), BytesMut::new());
    let mut trailers: Option<HeaderMap> = None;
    loop {
        // A body of endless empty pieces must not keep its task from anything else.
        tokio::task::consume_budget().await;
        let frame = match std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
            None => break,
            Some(Err(_)) => return Read::Broken,
            Some(Ok(frame)) => frame,
        };
        match frame.into_data() {
            Ok(mut data) => {
                let bytes = first.len() + more.len() + data.remaining();
                if bytes > limit {
                    return Read::TooLarge;
                }
                if drawn.reach(bytes).is_err() {
                    return Read::NoRoom;
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
        drained = discard(body, DRAIN_BYTES) => drained,
        () = sleep(DRAIN_WAIT) => Drained::Rest,
    }
}

/// Reads to the end, or to the limit, and keeps nothing.
async fn discard<B: HttpBody>(body: B, mut limit: usize) -> Drained {
    if body.size_hint().lower() > limit as u64 {
        return Drained::Rest;
    }
    let mut body = std::pin::pin!(body);
    loop {
        tokio::task::consume_budget().await;
        match std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
            None => return Drained::Empty,
            Some(Err(_)) => return Drained::Rest,
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Buf::remaining);
                match limit.checked_sub(bytes) {
                    Some(left) => limit = left,
                    None => return Drained::Rest,
                }
            }
        }
    }
}
