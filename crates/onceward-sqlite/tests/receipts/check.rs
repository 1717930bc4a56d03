//! What `onceward check` says about the database of a receipt table.

use std::path::Path;
use std::time::Duration;

use onceward::receipts::TableName;
use onceward::store::{Clock, Finding, Health, SystemClock};
use onceward_sqlite::receipts::examine;

use crate::handler::Shop;

fn findings(path: &Path) -> Vec<Finding> {
    examine(path, &TableName::default(), SystemClock.now())
}

#[track_caller]
fn health(findings: &[Finding], subject: &str) -> Health {
    findings
        .iter()
        .find(|finding| finding.subject == subject)
        .unwrap_or_else(|| panic!("no {subject}: {findings:?}"))
        .health
}

#[test]
fn a_database_with_the_table_is_found_good_and_every_lack_is_named() {
    let shop = Shop::open("wal");
    let good = findings(&shop.path);
    assert!(good.len() == 5 && good.iter().all(|finding| finding.health == Health::Good), "{good:?}");
    for (change, subject) in [
        ("DROP TRIGGER onceward_complete_row", "receipt views"),
        ("DROP VIEW onceward_enter", "receipt views"),
        ("ALTER TABLE onceward_receipts RENAME COLUMN body TO content", "receipt table"),
        ("DROP VIEW onceward_write; DROP TABLE onceward_receipts", "receipt table"),
        ("CREATE TABLE onceward_receipts (operation TEXT, fence TEXT)", "receipt table"),
    ] {
        shop.connection().execute_batch(change).unwrap();
        let found = findings(&shop.path);
        assert_eq!(health(&found, subject), Health::Problem, "{change}: {found:?}");
    }
}

#[test]
fn a_missing_file_is_a_problem_and_stays_missing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop.db");
    let found = findings(&path);
    assert_eq!(health(&found, "receipt database"), Health::Problem);
    assert!(found[0].text.contains("never creates"), "{found:?}");
    assert!(!path.exists());
}

#[test]
fn a_clock_that_is_a_minute_off_is_noticed() {
    let shop = Shop::open("delete");
    let later = SystemClock.now().after(Duration::from_secs(600));
    let found = examine(&shop.path, &TableName::default(), later);
    assert_eq!(health(&found, "receipt clock"), Health::Warning, "{found:?}");
}
