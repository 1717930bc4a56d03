//! A limit on the bytes of request bodies that are in memory at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A quarter of a GiB: 256 bodies of the default limit at once, and thousands of ordinary ones.
pub(super) const DEFAULT_BODY_BUDGET: usize = 256 << 20;

/// The bytes that the bodies of keyed requests may take altogether.
#[derive(Debug)]
pub(super) struct BodyBudget {
    limit: usize,
    used: AtomicUsize,
}

/// What one body takes of the budget. Dropping it gives the bytes back.
#[derive(Debug, Default)]
pub(super) struct BudgetShare {
    /// `None` where the body does not count.
    budget: Option<Arc<BodyBudget>>,
    bytes: usize,
}

/// The budget has fewer bytes left than were asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

impl BodyBudget {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// The share of a body that has not been read yet.
    pub(super) fn empty_share(self: &Arc<Self>) -> BudgetShare {
        BudgetShare { budget: Some(self.clone()), bytes: 0 }
    }
}

impl BudgetShare {
    /// Raises the share to `bytes`. It does not wait for other shares to end: a waiting request would keep its connection
    /// and the bytes that it has read, which are what is short.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let more = bytes.saturating_sub(self.bytes);
        if let Some(budget) = &self.budget {
            budget
                .used
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                    used.checked_add(more).filter(|used| *used <= budget.limit)
                })
                .map_err(|_| Exhausted)?;
        }
        self.bytes += more;
        Ok(())
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_given_out_to_the_last_byte_and_given_back() {
        let budget = BodyBudget::new(10);
        let (mut one, mut other) = (budget.empty_share(), budget.empty_share());
        assert_eq!(one.grow_to(4), Ok(()));
        assert_eq!(one.grow_to(2), Ok(()));
        assert_eq!(other.grow_to(7), Err(Exhausted));
        assert_eq!(other.grow_to(6), Ok(()));
        assert_eq!(one.grow_to(5), Err(Exhausted));
        drop(other);
        assert_eq!(one.grow_to(10), Ok(()));
        drop(one);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
        assert_eq!(BudgetShare::default().grow_to(usize::MAX), Ok(()));
    }
}
