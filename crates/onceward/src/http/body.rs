//! Bodies: read whole up to a limit, or passed through as they are.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::HeaderMap;
use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;

use super::body_budget::BudgetShare;
use crate::engine::PassThroughEntry;
use crate::time::sleep;

/// A refusal reads and discards this much of a body, so that the connection can be used again. It is what arrives in one
/// or two round trips; reading more costs the server more than a new connection costs the client.
pub(super) const DRAIN_BYTES: usize = 64 * 1024;
/// A refusal waits this long for such a body, so that a slow sender cannot hold its connection for longer.
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
        // Rare parts are boxed, because a body is moved a dozen times.
        Whole { data: Bytes, trailers: Option<Box<HeaderMap>>, share: BudgetShare },
        Passed { #[pin] body: B },
        Entered { #[pin] body: B, entry: Option<Arc<PassThroughEntry>> },
        Copied { #[pin] body: B, copy: Box<BodyCopy> },
    }
}

impl<B> Body<B> {
    pub(super) fn passed(body: B) -> Self {
        Self { kind: Kind::Passed { body } }
    }

    /// Passes through, and keeps its request's pass-through entry until it has been read or dropped.
    pub(super) fn with_entry(body: B, entry: Option<Arc<PassThroughEntry>>) -> Self {
        Self { kind: Kind::Entered { body, entry } }
    }

    pub(super) fn whole(whole: WholeBody) -> Self {
        Self::with_share(whole, BudgetShare::default())
    }

    /// A request's body, which keeps its share of the budget until it is sent or dropped.
    pub(super) fn with_share(whole: WholeBody, share: BudgetShare) -> Self {
        Self { kind: Kind::Whole { data: whole.data, trailers: whole.trailers.map(Box::new), share } }
    }
}

/// A whole body, for answers that a server around this layer makes itself.
impl<B> From<Bytes> for Body<B> {
    fn from(data: Bytes) -> Self {
        Self::whole(data.into())
    }
}

impl<B: HttpBody> Body<B> {
    /// Passes through, and is copied on the way.
    pub(super) fn copied(body: B, mut copy: BodyCopy) -> Self {
        if body.is_end_stream() {
            copy.finish();
        }
        Self { kind: Kind::Copied { body, copy: Box::new(copy) } }
    }
}

/// The copy of a body that passes through. It is sent to its receiver when the body ends, and dropped where the body breaks
/// off or does not fit.
#[derive(Debug)]
pub(super) struct BodyCopy {
    pieces: Vec<Bytes>,
    limit: usize,
    bytes: usize,
    share: BudgetShare,
    receiver: Option<oneshot::Sender<(WholeBody, BudgetShare)>>,
}

impl BodyCopy {
    pub(super) fn new(
        limit: usize,
        share: BudgetShare,
        receiver: oneshot::Sender<(WholeBody, BudgetShare)>,
    ) -> Self {
        Self { pieces: Vec::new(), limit, bytes: 0, share, receiver: Some(receiver) }
    }

    fn add(&mut self, data: &Bytes) {
        if self.receiver.is_none() {
            return;
        }
        self.bytes = self.bytes.saturating_add(data.len());
        if self.bytes > self.limit || self.share.grow_to(self.bytes).is_err() {
            return self.abandon();
        }
        self.pieces.push(data.clone());
    }

    fn abandon(&mut self) {
        self.receiver = None;
        self.pieces = Vec::new();
        self.share = BudgetShare::default();
    }

    fn finish(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            let data = match &self.pieces[..] {
                [only] => only.clone(),
                pieces => pieces.concat().into(),
            };
            self.pieces = Vec::new();
            // The receiver may be gone.
            drop(receiver.send((data.into(), std::mem::take(&mut self.share))));
        }
    }
}

/// A body that was read to its end.
#[derive(Debug, Clone, Default)]
pub(super) struct WholeBody {
    pub data: Bytes,
    pub trailers: Option<HeaderMap>,
}

impl From<Bytes> for WholeBody {
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
            // This copies nothing where the data are `Bytes` already, as they are with hyper and axum.
            KindProjected::Passed { body } | KindProjected::Entered { body, .. } => body
                .poll_frame(context)
                .map_ok(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))),
            KindProjected::Copied { mut body, copy } => {
                let frame = std::task::ready!(body.as_mut().poll_frame(context));
                let frame = frame.map(|frame| {
                    frame.map(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining())))
                });
                match &frame {
                    Some(Ok(frame)) => frame.data_ref().into_iter().for_each(|data| copy.add(data)),
                    Some(Err(_)) => copy.abandon(),
                    None => copy.finish(),
                }
                // A reader that checks `is_end_stream` does not poll for the end.
                if body.is_end_stream() {
                    copy.finish();
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
            // Over HTTP/1 only a body without a declared length can have trailers.
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

/// The result of reading a body.
#[derive(Debug)]
pub(super) enum ReadResult {
    /// All of it.
    Whole(WholeBody),
    /// It has more bytes than the limit; the rest was not read.
    TooLarge,
    /// It broke off.
    Broken,
    /// It does not fit the budget for bodies in memory.
    BudgetExhausted,
}

/// Reads a body to its end, or to a limit. A body that announces more than the limit, or than the budget has left, is not
/// read at all.
pub(super) async fn read<B: HttpBody>(body: B, limit: usize, share: &mut BudgetShare) -> ReadResult {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return ReadResult::TooLarge;
    }
    if share.grow_to(announced).is_err() {
        return ReadResult::BudgetExhausted;
    }
    let mut body = std::pin::pin!(body);
    let (mut first, mut more) = (Bytes::new(), BytesMut::new());
    let mut trailers: Option<HeaderMap> = None;
    loop {
        // A body of endless empty frames is always ready, and would not let other tasks run.
        tokio::task::consume_budget().await;
        let frame = match std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
            None => break,
            Some(Err(_)) => return ReadResult::Broken,
            Some(Ok(frame)) => frame,
        };
        match frame.into_data() {
            Ok(mut data) => {
                let bytes = first.len() + more.len() + data.remaining();
                if bytes > limit {
                    return ReadResult::TooLarge;
                }
                if share.grow_to(bytes).is_err() {
                    return ReadResult::BudgetExhausted;
                }
                // Most bodies come in one frame, which is kept without a copy.
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
    ReadResult::Whole(WholeBody { data, trailers })
}

/// Whether a connection can go on after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drained {
    /// Nothing is left of the request.
    Empty,
    /// Bytes are left, which could be mistaken for the next request.
    Rest,
}

/// Reads and discards the body of a refused request, within limits of size and time.
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

/// Reads a body to its end, or to a limit, and keeps nothing.
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
