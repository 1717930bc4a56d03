//! A future that is seldom ready, beside one that is polled all the time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

pin_project_lite::pin_project! {
    /// Polls a future only when it was woken. To ask a future that waits again and again means to take its place in a queue
    /// again and again, and the queue of those who wait for the end is one for all connections.
    pub(super) struct Seldom<F> {
        #[pin]
        future: F,
        bell: Arc<Bell>,
        // Whom the bell wakes.
        waiting: Option<Waker>,
    }
}

struct Bell {
    rung: AtomicBool,
    waiting: AtomicWaker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.waiting.wake();
    }
}

impl<F> Seldom<F> {
    pub(super) fn new(future: F) -> Self {
        // Its first poll is due.
        let bell = Bell { rung: AtomicBool::new(true), waiting: AtomicWaker::new() };
        Self { future, bell: Arc::new(bell), waiting: None }
    }
}

impl<F: Future> Future for Seldom<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let is_known = this.waiting.as_ref().is_some_and(|waiting| waiting.will_wake(context.waker()));
        if is_known && !this.bell.rung.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // A bell that has rung wakes nobody any more. Before the look, so that one that rings after it wakes.
        this.bell.waiting.register(context.waker());
        *this.waiting = Some(context.waker().clone());
        if !this.bell.rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(this.bell));
        this.future.poll(&mut Context::from_waker(&waker))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_future_is_polled_once_until_it_is_woken_and_is_then_ready() {
        let (tell, mut told) = oneshot::channel::<()>();
        let mut polled = 0;
        {
            let mut seldom = pin!(Seldom::new(poll_fn(|context| {
                polled += 1;
                Pin::new(&mut told).poll(context)
            })));
            for _ in 0..3 {
                let asked = poll_fn(|context| Poll::Ready(seldom.as_mut().poll(context))).await;
                assert!(asked.is_pending());
            }
            tell.send(()).unwrap();
            seldom.await.unwrap();
        }
        assert_eq!(polled, 2);
    }

    #[tokio::test]
    async fn whoever_polled_last_is_woken() {
        let (tell, told) = oneshot::channel::<()>();
        let mut seldom = Box::pin(Seldom::new(told));
        let asked = poll_fn(|context| Poll::Ready(seldom.as_mut().poll(context))).await;
        assert!(asked.is_pending());
        let elsewhere = tokio::spawn(seldom);
        tokio::task::yield_now().await;
        tell.send(()).unwrap();
        elsewhere.await.unwrap().unwrap();
    }
}
