//! Gateways of two versions on one database: this one, and the last that knew record format 1 only.

use std::path::Path;
use std::process::Command;

use onceward_testkit::servers::shared_postgres;

use super::crowd::Crowd;
use super::on_port;
use crate::harness::{Gateway, Port, Request, former};
use crate::ledger::Ledger;

/// Keys that are finished between two changes.
const KEYS: usize = 60;
/// Keys of which each is sent to both versions.
const PAIRS: usize = 20;

/// The command of the former version, with the arguments of this one. Nothing where the former version was not built.
fn as_former(current: &Command) -> Option<Command> {
    let Some(mut command) = former(current.get_current_dir().unwrap()) else {
        println!("ONCEWARD_TEST_FORMER is not set: gateways of two versions on one store were not tested");
        return None;
    };
    command.args(current.get_args());
    Some(command)
}

/// Two places where gateways listen, so that one version can follow another there.
struct Places<'a> {
    store: &'a str,
    folder: &'a Path,
    ledger: &'a Ledger,
    ports: [Port; 2],
}

impl<'a> Places<'a> {
    fn new(store: &'a str, folder: &'a Path, ledger: &'a Ledger) -> Self {
        Self { store, folder, ledger, ports: [Port::reserve(), Port::reserve()] }
    }

    fn command(&self, place: usize) -> Command {
        on_port(self.store, self.folder, self.ledger, &self.ports[place].address.to_string())
    }

    fn current(&self, place: usize, arguments: &[&str]) -> Gateway {
        Gateway::spawn(self.command(place).args(arguments))
    }

    fn former(&self, place: usize) -> Option<Gateway> {
        as_former(&self.command(place)).map(|mut command| Gateway::spawn(&mut command))
    }

    fn crowd(&self) -> Crowd {
        Crowd::of(&[self.ports[0].address, self.ports[1].address])
    }
}

/// Charges keys through one gateway, and asserts that the other replays the answers.
async fn assert_replays(first: &Gateway, second: &Gateway, name: &str) {
    for number in 0..PAIRS {
        let key = format!("{name}-{number}");
        let answer = first.send(Request::charge(&key).header("x-answer", &key)).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, false), "{key}: {answer:?}");
        let replayed = second.charge(&key).await;
        assert!(replayed.is_replayed(), "{key}: {replayed:?}");
        assert_eq!(replayed.body, answer.body, "{key}");
    }
}

#[tokio::test]
async fn an_upgrade_of_one_gateway_after_the_other_under_load_repeats_nothing_and_loses_nothing() {
    let (folder, store) = (tempfile::tempdir().unwrap(), shared_postgres());
    let ledger = Ledger::start(folder.path());
    let places = Places::new(&store, folder.path(), &ledger);
    let Some(first) = places.former(0) else { return };
    let Some(second) = places.former(1) else { return };
    let mut crowd = places.crowd();
    crowd.progress(KEYS).await;
    first.stop();
    // The store is a used one: this version writes format 1 until it is configured that every gateway reads 2.
    let first = places.current(0, &[]);
    crowd.progress(KEYS).await;
    assert_replays(&first, &second, "to-the-former").await;
    assert_replays(&second, &first, "from-the-former").await;
    second.stop();
    let second = places.current(1, &[]);
    crowd.progress(KEYS).await;
    first.stop();
    let first = places.current(0, &["--record-format", "2"]);
    crowd.progress(KEYS).await;
    assert_replays(&first, &second, "format-2").await;
    assert_replays(&second, &first, "format-1").await;
    let counts = crowd.check(&first, &ledger).await;
    assert!(counts.answered >= 3 * KEYS, "{counts:?}");
}

#[tokio::test]
async fn going_back_to_the_former_version_under_load_repeats_nothing_and_loses_nothing() {
    let (folder, store) = (tempfile::tempdir().unwrap(), shared_postgres());
    let ledger = Ledger::start(folder.path());
    let places = Places::new(&store, folder.path(), &ledger);
    let old_format = ["--record-format", "1"];
    let (first, second) = (places.current(0, &old_format), places.current(1, &old_format));
    let mut crowd = places.crowd();
    crowd.progress(KEYS).await;
    first.stop();
    let Some(first) = places.former(0) else { return crowd.end().await };
    crowd.progress(KEYS).await;
    assert_replays(&first, &second, "from-the-former").await;
    assert_replays(&second, &first, "to-the-former").await;
    second.stop();
    let _second = places.former(1);
    crowd.progress(KEYS).await;
    let counts = crowd.check(&first, &ledger).await;
    assert!(counts.answered >= 2 * KEYS, "{counts:?}");
}

#[tokio::test]
async fn a_former_gateway_fails_closed_for_each_record_of_format_2_and_serves_all_others() {
    let (folder, store) = (tempfile::tempdir().unwrap(), shared_postgres());
    let ledger = Ledger::start(folder.path());
    let places = Places::new(&store, folder.path(), &ledger);
    // A new store gets format 2.
    let current = places.current(0, &[]);
    let Some(former) = places.former(1) else { return };
    let mut crowd = places.crowd();
    crowd.progress(KEYS).await;
    for number in 0..PAIRS {
        let key = format!("unreadable-{number}");
        assert_eq!(current.charge(&key).await.status, 201, "{key}");
        let answer = former.charge(&key).await;
        assert_eq!(
            answer.status_and_code(),
            (503, "idempotency_store_unavailable".to_owned()),
            "{key}: {answer:?}"
        );
        assert!(current.charge(&key).await.is_replayed(), "{key}");
    }
    assert_replays(&former, &current, "format-1").await;
    crowd.progress(KEYS).await;
    let counts = crowd.check(&current, &ledger).await;
    assert!(counts.answered >= KEYS, "{counts:?}");
}
