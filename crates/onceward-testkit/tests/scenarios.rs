//! Every script holds for the pure machine, and scripts with mistakes are refused with what would have been right.

use std::collections::BTreeSet;

use onceward_testkit::scenario::{MachineDoor, SCRIPTS, Script, on_machine, run};

mod on_the_pure_machine {
    use super::*;

    onceward_testkit::scenarios!(on_machine);
}

#[test]
fn every_script_in_the_folder_is_listed_and_named_by_a_sentence_of_its_own() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let files: BTreeSet<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let listed: BTreeSet<_> = SCRIPTS.iter().map(|(name, _)| format!("{name}.txt")).collect();
    assert_eq!(files, listed);
    let titles: BTreeSet<_> = SCRIPTS.iter().map(|(_, text)| text.parse::<Script>().unwrap().title).collect();
    assert_eq!(titles.len(), SCRIPTS.len(), "two scripts have the same title");
}

#[test]
fn a_mistake_in_a_script_is_refused_with_its_line_and_what_was_expected() {
    let mistakes = [
        ("0s A claims k body=x -> execute", "line 1: a script begins with its title"),
        ("", "line 1: a script begins with its title"),
        ("# T.", "line 1: nothing happens"),
        ("# T.\n\n0s A claims k body=x", "line 3: expected `-> ANSWER`"),
        ("# T.\nA claims k body=x -> execute", "line 2: \"A\" is no time"),
        ("# T.\n5 A claims k body=x -> execute", "line 2: \"5\" is no time: expected a number and one of us"),
        ("# T.\n99999999999999999d A claims k body=x -> execute", "is no time"),
        ("# T.\n5s A steals k -> execute", "line 2: \"steals\" is no verb: expected claims, reads"),
        ("# T.\n5s A claims k -> execute", "line 2: expected body="),
        ("# T.\n5s A claims -> execute", "line 2: expected a key, like k"),
        ("# T.\n5s A claims k body=x body=y -> execute", "line 2: body= is given twice"),
        ("# T.\n5s A claims k body=x bdoy=y -> execute", "line 2: `bdoy=y` has no meaning here"),
        ("# T.\n5s A settles fence=1 maybe -> applied", "\"maybe\" is no status"),
        ("# T.\n5s A settles 201 -> applied", "line 2: expected fence="),
        ("# T.\n5s A renews fence=1 -> applied", "line 2: no key was claimed before this line"),
        ("# T.\n5s A sweeps gently key=k -> left", "\"gently\": expected hard or soft"),
        ("# T.\n5s A claims k body=x -> refuse", "\"refuse\" is no answer: expected one of execute, resume"),
        ("# T.\n5s A claims k body=x -> replay 99", "\"replay 99\" is no answer"),
        (
            "# T.\n5s A claims k body=x -> execute letter=dead",
            "`execute` has no letter=: expected state, alarm",
        ),
        ("# T.\n5s A claims k body=x -> execute state=done", "state=done: expected in_progress, completed"),
        ("# T.\n5s A claims k body=x -> execute alarm=loud", "alarm=loud: expected contradiction"),
        ("# T.\n5s A claims k body=x -> execute\n4s A claims k body=x -> execute", "line 3: 4s lies before"),
        ("# T.\nterms lease=60", "line 2: \"60\" is no time"),
        ("# T.\nterms on_lapse=resume", "line 2: expected attempts="),
        ("# T.\nterms on_lapse=panic", "line 2: on_lapse=panic: expected unknown or resume"),
        ("# T.\nclock behind=5s", "line 2: expected ahead="),
    ];
    for (text, expected) in mistakes {
        let problem = text.parse::<Script>().map(|_| ()).unwrap_err().to_string();
        assert!(problem.contains(expected), "{text:?} was refused with {problem:?}, not {expected:?}");
    }
}

#[tokio::test]
async fn a_script_that_expects_something_else_fails_with_what_was_told() {
    let wrong = [
        ("0s A claims k body=x -> replay 201", "answered: execute"),
        ("0s A claims k body=x -> execute fence=2", "expected: fence=2"),
        ("0s A claims k body=x -> execute attempt=2", "expected: attempt=2"),
        ("0s A claims k body=x -> execute state=completed", "expected: state=completed"),
        ("0s A claims k body=x -> execute alarm=contradiction", "expected: alarm=contradiction"),
        ("0s A settles fence=1 201 key=k -> applied", "only 0 tenures were handed out"),
        (
            "0s A claims k body=x -> execute\n1s A settles fence=1 201 -> applied\n\
             2s A settles fence=1 retryable -> already_settled 201",
            "alarm=contradiction\nexpected: alarm=none",
        ),
        (
            "0s A claims k body=x -> execute\n1s A settles fence=1 201 reply=x -> applied\n\
             2s B claims k body=x -> replay 201 reply=y",
            "expected: reply=y",
        ),
    ];
    for (lines, expected) in wrong {
        let script: Script = format!("# Title.\n{lines}").parse().unwrap();
        let failure = run(&script, &mut MachineDoor::default()).await.unwrap_err().to_string();
        assert!(failure.starts_with("Title.\nline "), "{failure}");
        assert!(failure.contains(expected), "{lines:?} failed with {failure:?}, not {expected:?}");
    }
}
