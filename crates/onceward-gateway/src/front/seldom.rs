//! A future that is seldom ready, beside one that is polled all the time.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

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
    // It stays here when it is woken. If it were taken out, a poll in the middle of a ring would believe that it is still
    // known here, and nobody would hear the next.
    waiting: Mutex<Option<Waker>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
        self.call();
    }
}

impl Bell {
    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
    }

    fn call(&self) {
        // A panic while the lock is held cannot leave half a waker.
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    fn register(&self, waker: &Waker) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }
}

impl<F> Seldom<F> {
    pub(super) fn new(future: F) -> Self {
        // Its first poll is due.
        let bell = Bell { rung: AtomicBool::new(true), waiting: Mutex::default() };
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
        if !is_known {
            // Before the look, so that a bell that rings after it wakes.
            this.bell.register(context.waker());
            *this.waiting = Some(context.waker().clone());
        }
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
    use std::sync::atomic::AtomicUsize;

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

    #[test]
    fn a_poll_in_the_middle_of_a_ring_for_nothing_does_not_make_the_next_ring_go_unheard() {
        struct Woken(AtomicUsize);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let woken = Arc::new(Woken(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut seldom = pin!(Seldom::new(std::future::pending::<()>()));
        let bell = Arc::clone(&seldom.bell);
        assert!(seldom.as_mut().poll(&mut context).is_pending());
        // Another thread rings, and the task is polled for another reason before it is woken.
        bell.ring();
        assert!(seldom.as_mut().poll(&mut context).is_pending());
        bell.call();
        // It was woken, and there is nothing new.
        assert!(seldom.as_mut().poll(&mut context).is_pending());
        let before = woken.0.load(Ordering::Relaxed);
        bell.wake_by_ref();
        assert_eq!(woken.0.load(Ordering::Relaxed), before + 1);
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
