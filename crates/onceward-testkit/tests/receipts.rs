//! The suite of receipt tables, for the one in memory.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

use onceward::receipts::{ReceiptTable, TableError};
use onceward_testkit::receipts::{Answer, Handler, MemoryReceipts, Specimen, Step};
use onceward_testkit::sample;

async fn in_memory() -> Specimen {
    let table = MemoryReceipts::new();
    Specimen::new(table.clone(), move || {
        let handler = table.handler();
        async { handler }
    })
}

onceward_testkit::receipt_conformance!(in_memory);

#[tokio::test]
async fn an_outage_fails_every_call_and_a_lost_answer_only_its_own() {
    let table = MemoryReceipts::new();
    let step = Step::first(onceward::OperationId::bare(sample::id(1)), table.fence());
    table.set_outage(Some("the network is gone"));
    let down = table.read(step.operation).await;
    assert!(
        matches!(&down, Err(TableError::Unavailable { reason }) if reason.contains("network")),
        "{down:?}"
    );
    assert!(table.void(step.operation, step.fence).await.is_err());
    assert!(table.is_empty());
    table.set_outage(None);
    table.lose_answers(1);
    assert!(table.void(step.operation, step.fence.above()).await.is_err());
    assert_eq!(table.committed(step.operation).unwrap().fence, step.fence.above());
    assert_eq!(table.voids(), [(step.operation, step.fence.above())]);
    let mut handler = table.handler();
    handler.begin().await.unwrap();
    assert!(handler.complete(step, Answer::json(200, b"")).await.is_err());
}
