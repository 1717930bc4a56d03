//! Notes, and the deletion of old rows.

use std::time::Duration;

use onceward::receipts::{AgedRow, Note};
use onceward::{Fence, OperationId};

use crate::receipts::suite::Bench;
use crate::sample;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// The first to write a note is the one who is believed.
pub async fn a_note_stands_from_the_first_write_until_it_is_erased(bench: Bench) {
    let first = Note { number: 7, text: "store-1 \"quoted\" 'twice' \\ é".to_owned() };
    let second = Note { number: i64::MAX.unsigned_abs(), text: String::new() };
    assert_eq!(bench.table.noted("store").await.unwrap(), None);
    bench.table.erase("store").await.unwrap();
    assert_eq!(bench.table.note("store", &first).await.unwrap(), first);
    assert_eq!(bench.table.note("store", &second).await.unwrap(), first);
    assert_eq!(bench.table.note("it's another", &second).await.unwrap(), second);
    assert_eq!(bench.table.noted("store").await.unwrap(), Some(first));
    bench.table.erase("store").await.unwrap();
    assert_eq!(bench.table.noted("store").await.unwrap(), None);
    assert_eq!(bench.table.note("store", &second).await.unwrap(), second);
}

/// Notes are neither listed nor met by an operation.
pub async fn a_note_is_no_row(bench: Bench) {
    let note = Note { number: 1, text: "an old one".to_owned() };
    bench.table.note("store", &note).await.unwrap();
    // Not even under the name of an operation.
    let (operation, fence) = bench.operation(1);
    bench.table.note(&operation.to_string(), &note).await.unwrap();
    assert_eq!(bench.read(operation).await, None);
    assert_eq!(bench.void(operation, fence).await.fence, fence);
    assert_eq!(bench.table.aged(HOUR, None, 100).await.unwrap(), []);
    assert_eq!(bench.table.noted(&operation.to_string()).await.unwrap(), Some(note));
}

/// Pages lose and repeat nothing, and a page may be of one.
pub async fn old_rows_are_listed_in_pages_and_young_ones_are_not(bench: Bench) {
    let note = Note { number: 1, text: String::new() };
    bench.table.note("store", &note).await.unwrap();
    let old = bench.fence_aged(49 * HOUR);
    let mut expected = Vec::new();
    for n in 0..20 {
        let operation = match n {
            // Windows of one key, and an id without a window.
            0..3 => OperationId::windowed(sample::id(0), Fence::from_number(old.as_number() + n)),
            3 => OperationId::bare(sample::id(0)),
            _ => bench.operation(n).0,
        };
        let (fence, listed) = if n % 3 == 2 { (bench.operation(n).1, false) } else { (old, true) };
        bench.void(operation, fence).await;
        if listed {
            expected.push(AgedRow { operation, fence });
        }
    }
    expected.sort_by_key(|row| row.operation.to_string());
    assert_eq!(bench.table.aged(50 * HOUR, None, 100).await.unwrap(), []);
    assert_eq!(bench.table.aged(48 * HOUR, None, 0).await.unwrap(), []);
    for limit in [1, 4, 100] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = bench.table.aged(48 * HOUR, after, limit).await.unwrap();
            assert!(page.len() <= limit, "a page of at most {limit} has {}", page.len());
            after = page.last().map(|row| row.operation);
            found.extend(page);
            assert!(found.len() <= expected.len(), "the pages of {limit} never end");
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "in pages of {limit}");
    }
}

/// A row that was voided or taken over since it was listed stays.
pub async fn only_a_row_that_still_has_its_fence_is_deleted(bench: Bench) {
    let old = bench.fence_aged(49 * HOUR);
    let rows: Vec<_> = (0..1_200).map(|n| AgedRow { operation: bench.operation(n).0, fence: old }).collect();
    for row in &rows[..3] {
        bench.void(row.operation, row.fence).await;
    }
    bench.void(rows[1].operation, old.above()).await;
    assert_eq!(bench.table.delete(rows).await.unwrap(), 2);
    assert_eq!(bench.table.delete(Vec::new()).await.unwrap(), 0);
    assert_eq!(bench.read(bench.operation(0).0).await, None);
    assert_eq!(bench.read(bench.operation(1).0).await.unwrap().fence, old.above());
}
