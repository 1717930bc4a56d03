//! Reads a listed row and applies the filter.

use onceward::codec::{self, Unreadable};
use onceward::store::driver::PageBudget;
use onceward::store::{Entry, Filter, Which};
use onceward::{Record, RecordId, Timestamp, record::Letter};
use rusqlite::Row;

use crate::rows::{micros, version};

/// Reads a row of (number, due_at, id, version, state, created_at, record), and counts its bytes in the page's budget.
/// Returns `None` for a row that the filter rejects. A record that cannot be decoded is filtered by its columns alone.
pub(crate) fn entry(
    row: &Row<'_>,
    which: &Which,
    budget: &mut PageBudget,
) -> rusqlite::Result<Option<Entry>> {
    if let Which::Filter(filter) = which
        && !columns_agree(filter, row)?
    {
        return Ok(None);
    }
    let id = RecordId::from_bytes(row.get(2)?);
    let record = match row.get_ref(6)?.as_blob() {
        Ok(stored) => {
            budget.count_bytes(stored.len());
            codec::decode(id, stored)
        }
        Err(_) => Err(Unreadable::Damaged { how: "not stored as bytes" }),
    };
    let asked_for = |record: &Record| match which {
        Which::Due(_) => true,
        Which::Filter(filter) => filter.accepts(record),
    };
    let wanted = record.as_ref().map_or(true, asked_for);
    Ok(wanted.then_some(Entry { id, version: version(row.get(3)?), record }))
}

fn columns_agree(filter: &Filter, row: &Row<'_>) -> rusqlite::Result<bool> {
    if let Some(state) = filter.state
        && row.get_ref(4)?.as_bytes()? != state.name().as_bytes()
    {
        return Ok(false);
    }
    // A dead letter is never due. Its column saves decoding the outcomes that are.
    if filter.letter == Some(Letter::Dead) && row.get::<_, i64>(1)? != micros(Timestamp::NEVER) {
        return Ok(false);
    }
    if let Some(before) = filter.created_before
        && row.get::<_, i64>(5)? >= micros(before)
    {
        return Ok(false);
    }
    Ok(true)
}
