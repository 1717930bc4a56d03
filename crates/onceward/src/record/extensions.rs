//! What this version adds to format 2, as tagged extensions.

use bytes::Bytes;

use super::{Extension, Record};
use crate::id::NamespaceHash;

/// Whose record it is among the engines that share a store. A version that does not know it may use the record all the same.
const NAMESPACE: u32 = 1;
/// The work commits a receipt row. Critical: a version that does not know it would release or resume without a void.
const RECEIPTS: u32 = 2;

/// Whether the work of an operation commits a receipt row, which then decides what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Receipts {
    /// It does not.
    #[default]
    None,
    /// It does: what was not committed under a fence is released by a void, and by nothing less.
    Kept,
}

impl Extension {
    /// Whether this version knows what it means.
    pub(crate) const fn is_known(&self) -> bool {
        matches!(self.tag, NAMESPACE | RECEIPTS)
    }
}

impl Record {
    /// The namespace of the engine that claimed it. Records of versions that did not note it have none.
    pub(crate) fn namespace(&self) -> Option<NamespaceHash> {
        let noted = self.extensions.iter().find(|extension| extension.tag == NAMESPACE)?;
        Some(NamespaceHash::from_bytes(noted.data.as_ref().try_into().ok()?))
    }

    /// Whether its work commits a receipt row.
    pub fn receipts(&self) -> Receipts {
        let kept = self.extensions.iter().any(|extension| extension.tag == RECEIPTS);
        if kept { Receipts::Kept } else { Receipts::None }
    }

    /// Notes what is known at a claim, beside what newer versions have noted in this window.
    pub(super) fn note_claim(&mut self, namespace: NamespaceHash, receipts: Receipts) {
        self.extensions.retain(|extension| !extension.is_known());
        let data = Bytes::copy_from_slice(namespace.as_bytes());
        self.extensions.push(Extension { tag: NAMESPACE, critical: false, data });
        if receipts == Receipts::Kept {
            self.extensions.push(Extension { tag: RECEIPTS, critical: true, data: Bytes::new() });
        }
    }
}
