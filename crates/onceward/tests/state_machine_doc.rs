//! The diagram in `docs/state_machine.md` shows what the machine does: every edge, and no other.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests report by panicking, as tests do"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use onceward::event::{
    Barrier, Control, Event, Expiry, FindStart, FindTerms, Finding, Moment, Resolution, Write,
};
use onceward::{
    Claim, Fence, Key, OnLapse, Outcome, Record, Scope, Terms, Timestamp,
    claim::OwnerToken,
    key::NamespaceHash,
    machine,
    outcome::{Evidence, Void},
    record::{Absence, Cause, Doubt, Extension, Letter, RecordFormat, State},
};
use onceward_testkit::sample;

const DOCUMENT: &str = include_str!("../../../docs/state_machine.md");

/// A state, what happens, and the state then. What is absent is `[*]`, as in the diagram.
type Edge = (String, String, String);

/// When everything happens: in the middle of what the representatives below are before and after.
const NOW: Timestamp = sample::START;

fn earlier() -> Timestamp {
    Timestamp::from_micros(NOW.as_micros() - 1_000_000)
}

fn later() -> Timestamp {
    NOW.after(Duration::from_secs(1))
}

/// Every state before and after its time, with and without everything that the machine looks at.
fn representatives() -> Vec<Record> {
    let fence = Fence::from_number(NOW.as_micros());
    let old = Fence::from_number(NOW.as_micros() - 5);
    let evidence = |fence| Evidence { fence, reply: sample::reply(201, "evidence"), at: earlier() };
    let resume = OnLapse::Resume { attempts: 3, within: Duration::from_secs(60) };
    let doubt = Doubt { since: earlier(), cause: Cause::Lost };
    let mut all = Vec::new();
    for at in [earlier(), later()] {
        for state in [
            sample::in_progress(at),
            sample::completed(at),
            sample::failed_retryable(at),
            sample::unknown(at, Letter::Live),
            sample::unknown(at, Letter::Dead),
            sample::done_not_kept(at),
            sample::expired(at),
        ] {
            for evidence in [None, Some(evidence(fence)), Some(evidence(old))] {
                for (recovery_point, on_lapse, attempt) in [
                    (None, OnLapse::Unknown, 1),
                    (Some(sample::point("charged")), resume, 1),
                    (Some(sample::point("charged")), resume, 3),
                ] {
                    let record = Record {
                        terms: Terms { on_lapse, ..Terms::default() },
                        opened: old,
                        origin: old,
                        fence,
                        owner: OwnerToken::named("owner"),
                        attempt,
                        recovery_point,
                        evidence: evidence.clone(),
                        ..sample::in_state("x", state.clone())
                    };
                    let kept = Extension { tag: 2, critical: true, data: Bytes::new() };
                    all.push(Record { doubt: Some(doubt), ..record.clone() });
                    all.push(Record { extensions: vec![kept], ..record.clone() });
                    for count in [1, 2] {
                        let absence = Some(Absence { count, first_at: earlier(), fence });
                        all.push(Record { absence, ..record.clone() });
                    }
                    all.push(record);
                }
            }
        }
    }
    all
}

/// Everything that can happen, by the name that the diagram gives it.
fn happenings(claims: &[Claim]) -> Vec<(&'static str, Event<'_>)> {
    let (fence, old) = (Fence::from_number(NOW.as_micros()), Fence::from_number(NOW.as_micros() - 3));
    let completed = || Outcome::Completed(sample::reply(200, "done"));
    let resolve = |verdict| Event::Resolve {
        fence: None,
        verdict,
        barrier: Barrier::None,
        by: "ops".to_owned(),
        reason: "saw it".to_owned(),
    };
    let void = || Void { fence: fence.above(), point: None };
    let voided = || Outcome::Voided { void: void(), why: "hung up".to_owned() };
    let found = |fence, finding, attempts| {
        let terms = FindTerms::default().attempts(attempts);
        Event::Found { fence, finding, control: Control::None, terms, by: "a finder" }
    };
    let found_absent = |finding| {
        let terms = FindTerms::default().absent_after(Some(Duration::ZERO));
        Event::Found { fence, finding: Ok(finding), control: Control::Made, terms, by: "a finder" }
    };
    let mut all = vec![
        ("resume", Event::Resume { owner: OwnerToken::named("completer") }),
        ("renew", Event::Renew { fence }),
        ("late renew", Event::Renew { fence: old }),
        ("checkpoint", Event::Checkpoint { fence, point: sample::point("next") }),
        ("late checkpoint", Event::Checkpoint { fence: old, point: sample::point("next") }),
        ("settle completed", Event::Settle { fence, outcome: completed() }),
        ("settle retryable", Event::Settle { fence, outcome: Outcome::Retryable("refused".to_owned()) }),
        ("settle unknown", Event::Settle { fence, outcome: Outcome::lost("timed out") }),
        ("settle done not kept", Event::Settle { fence, outcome: Outcome::done_not_kept("too large") }),
        ("late result", Event::Settle { fence: old, outcome: completed() }),
        ("late settle retryable", Event::Settle { fence: old, outcome: Outcome::Retryable(String::new()) }),
        ("late settle unknown", Event::Settle { fence: old, outcome: Outcome::lost("") }),
        (
            "evidence",
            Event::Evidence { fence: None, reply: sample::reply(200, "seen"), by: "webhook".to_owned() },
        ),
        ("settle voided", Event::Settle { fence, outcome: voided() }),
        ("find begins", Event::Find { fence, hold: Duration::from_secs(20), start: FindStart::WhenDue }),
        ("found completed", found(fence, Ok(Finding::Completed(sample::reply(200, "found"))), 8)),
        ("found done not kept", found(fence, Ok(Finding::DoneNotKept("too large".to_owned())), 8)),
        ("found voided", found(fence, Ok(Finding::Voided(void())), 8)),
        ("found nothing", found(fence, Ok(Finding::Absent), 8)),
        ("found nothing", found(fence, Ok(Finding::Inconclusive("processing".to_owned())), 1)),
        ("found absent", found_absent(Finding::Absent)),
        ("found absent", found_absent(Finding::AbsentAndVoided(void()))),
        ("found ambiguous", found(fence, Ok(Finding::Ambiguous("two of them".to_owned())), 8)),
        ("not asked", found(fence, Err("it did not answer".to_owned()), 8)),
        ("late finding", found(old, Ok(Finding::Completed(sample::reply(200, "found"))), 8)),
        ("late finding", found(old, Ok(Finding::Voided(void())), 8)),
        ("given up", Event::GiveUp { after: Duration::ZERO }),
        ("resolve completed", resolve(Resolution::Completed(sample::reply(200, "resolved")))),
        ("resolve retryable", resolve(Resolution::Retryable)),
        ("expire", Event::Expire { opened: None, after: Duration::ZERO }),
        ("sweep", Event::Sweep { expiry: Expiry::Delete }),
        ("sweep softly", Event::Sweep { expiry: Expiry::Soft }),
    ];
    for claim in claims {
        for owner in ["owner", "somebody else"] {
            all.push((
                "claim",
                Event::Claim {
                    claim,
                    owner: OwnerToken::named(owner),
                    label: "k",
                    format: RecordFormat::Two,
                    namespace: NamespaceHash::from_bytes([7; 16]),
                },
            ));
        }
    }
    all
}

fn name(state: Option<&State>) -> String {
    state.map_or("[*]", State::name).to_owned()
}

/// Every edge on which the machine writes.
fn edges_of_the_machine() -> BTreeSet<Edge> {
    let claim = |body: &str, rules| {
        let (scope, key) = (Scope::new("acme").unwrap(), Key::new("k").unwrap());
        Claim::new(scope, key, sample::fingerprint(body, rules))
    };
    let claims = [claim("x", None), claim("y", None), claim("x", Some("new"))];
    let records: Vec<_> = std::iter::once(None).chain(representatives().into_iter().map(Some)).collect();
    let at = Moment { now: NOW, expiry_now: NOW };
    let mut edges = BTreeSet::new();
    for record in &records {
        for (event, happening) in happenings(&claims) {
            let to = match machine::step(record.as_ref(), at, &happening).write {
                Write::Keep => continue,
                Write::Put(next) => name(Some(&next.state)),
                Write::Remove => name(None),
            };
            edges.insert((name(record.as_ref().map(|record| &record.state)), event.to_owned(), to));
        }
    }
    edges
}

/// The edges in the document's Mermaid block: `from --> to: event, event`.
fn edges_of_the_diagram() -> BTreeSet<Edge> {
    let (_, block) = DOCUMENT.split_once("```mermaid\n").expect("the document has a diagram");
    let (block, _) = block.split_once("```").expect("the diagram ends");
    let mut edges = BTreeSet::new();
    for line in block.lines().map(str::trim).filter(|line| line.contains("-->")) {
        let (from, rest) = line.split_once("-->").expect("the line has an arrow");
        let (to, events) =
            rest.split_once(':').unwrap_or_else(|| panic!("{line:?} does not say what happens"));
        for event in events.split(',') {
            let edge = (from.trim().to_owned(), event.trim().to_owned(), to.trim().to_owned());
            assert!(edges.insert(edge.clone()), "{edge:?} is drawn twice");
        }
    }
    edges
}

#[test]
fn the_diagram_shows_every_edge_of_the_machine_and_no_other() {
    let (machine, diagram) = (edges_of_the_machine(), edges_of_the_diagram());
    let show = |edges: Vec<&Edge>| -> String {
        edges.into_iter().map(|(from, event, to)| format!("\n    {from} --> {to}: {event}")).collect()
    };
    let missing = show(machine.difference(&diagram).collect());
    let extra = show(diagram.difference(&machine).collect());
    assert!(
        missing.is_empty() && extra.is_empty(),
        "docs/state_machine.md does not draw what the machine does.\nmissing in the diagram:{missing}\nonly in the diagram:{extra}"
    );
}

#[test]
fn every_row_of_the_table_in_the_document_is_about_known_states_and_events() {
    let rows: Vec<_> = DOCUMENT.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    assert!(rows.len() >= 20, "the transition table has only {} rows", rows.len());
    let states = ["none", "any", "in_progress", "completed", "failed_retryable", "unknown", "expired"];
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{row}");
        assert!(states.iter().any(|state| cells[0].contains(state)), "{row} begins in no state");
    }
}
