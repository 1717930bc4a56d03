//! A receipt table that belongs to one store.

use std::sync::{Arc, OnceLock};

use super::table::{Note, ReceiptTable, TableError};
use crate::engine::reconcile::StoreName;

/// The note that binds a table to one store.
const STORE: &str = "store";

/// A table, and the store whose operations its rows are about.
pub(super) struct BoundTable {
    pub(super) table: Arc<dyn ReceiptTable>,
    /// Set when the engine opens its store.
    store: OnceLock<StoreName>,
    bound: OnceLock<()>,
}

/// Why a table cannot be used for a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BindError {
    /// Its rows are about the operations of another store.
    #[error(
        "the receipt table is bound to {found}, and this is {store}: give each store a table of its own, or, if the former store is gone for good, delete the row \"onceward:{STORE}\" of the table"
    )]
    OtherStore { found: String, store: StoreName },
    /// It was used before an engine opened a store.
    #[error("the receipt table is not bound to a store: open an engine with its finder first")]
    NoStore,
    #[error(transparent)]
    Table(#[from] TableError),
}

impl BoundTable {
    pub(super) fn new(table: Arc<dyn ReceiptTable>) -> Self {
        Self { table, store: OnceLock::new(), bound: OnceLock::new() }
    }

    /// Says which store the table is for. The first one counts.
    pub(super) fn belongs_to(&self, store: StoreName) {
        self.store.get_or_init(|| store);
    }

    /// The table, after it was checked that it belongs to the store. The check is made once, as soon as the database answers.
    pub(super) async fn get(&self) -> Result<&dyn ReceiptTable, BindError> {
        if self.bound.get().is_none() {
            let store = *self.store.get().ok_or(BindError::NoStore)?;
            let note = Note { number: 0, text: store.to_string() };
            let found = self.table.note(STORE, &note).await?;
            if found != note {
                return Err(BindError::OtherStore { found: found.text, store });
            }
            self.bound.get_or_init(|| ());
        }
        Ok(&*self.table)
    }
}
