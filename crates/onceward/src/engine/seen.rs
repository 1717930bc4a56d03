//! The operation that a call is about, known as soon as its record was read or written.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::OperationId;

/// The operation that a call of [`Engine::run_with`](super::Engine::run_with) is about. It is shared with the caller, because an answer
/// that is given before the work has ended names its operation too.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenOperation(Arc<Mutex<Option<OperationId>>>);

impl SeenOperation {
    /// The operation of the record that was read or written last. `None` while there was none.
    #[cfg(feature = "http")]
    pub(crate) fn get(&self) -> Option<OperationId> {
        *self.lock()
    }

    pub(super) fn note(&self, operation: OperationId) {
        *self.lock() = Some(operation);
    }

    // A panic while the lock is held cannot leave half an id.
    fn lock(&self) -> MutexGuard<'_, Option<OperationId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
