//! Format 2: an envelope's number, and the fields of [`Record`] in their order.
//!
//! Later versions keep what they add in tagged extensions, so that the format itself does not change again. An extension
//! that is not known is written back unchanged; one that is critical makes the record unreadable here.
//!
//! A new field or a new variant in an old one looks like damage to a version that does not know it, and what is damaged
//! may be replaced by an operator. So any change of the layout gets an envelope number of its own, which makes the record
//! [`Foreign`](Unreadable::Foreign) there.

use super::{Unreadable, whole};
use crate::record::Record;

/// The envelope of fields that are not encrypted. Other numbers are for encrypted ones.
pub(super) const PLAIN: u8 = 0;

pub(super) fn read(rest: &[u8]) -> Result<Record, Unreadable> {
    let (&envelope, fields) = rest.split_first().ok_or(Unreadable::Damaged { how: "cut short" })?;
    if envelope != PLAIN {
        return Err(Unreadable::Foreign { what: "envelope", number: envelope.into() });
    }
    let record: Record = whole(fields)?;
    match record.extensions.iter().find(|extension| extension.critical && !extension.is_known()) {
        Some(extension) => Err(Unreadable::Foreign { what: "extension", number: extension.tag }),
        None => Ok(record),
    }
}
