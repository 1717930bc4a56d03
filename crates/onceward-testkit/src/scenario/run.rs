//! Runs a script against anything that has a door.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use onceward::event::{Answer, Decision, Notice, Refusal};
use onceward::{Fence, record::Letter};

use super::{Act, Line, Script};

/// What a script can be run against.
pub trait Door {
    /// Lets time pass until this long after the beginning. The store's clock is `ahead` of that, and expiry is not.
    fn wait_until(&mut self, at: Duration, ahead: Duration) -> impl Future<Output = ()> + Send;

    /// Does it. `fence` is the tenure that the act names, if it names one.
    fn act(&mut self, act: &Act, fence: Option<Fence>) -> impl Future<Output = Observed> + Send;
}

/// The result of an act, as far as the door shows it. What is hidden is not compared.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The answer.
    pub reaction: Reaction,
    /// The tenure that was handed out and its attempt, with Execute and Resume.
    pub tenure: Option<(Fence, u32)>,
    /// The record's state afterwards, or `none`.
    pub state: Option<&'static str>,
    /// Other values of the record afterwards, by the names that scripts use.
    pub facts: Vec<(&'static str, String)>,
    /// The notice for operators, or that there was none.
    pub alarm: Option<Alarm>,
}

/// The notice for operators, or that there was none.
pub type Alarm = Result<Notice, Silence>;

/// There was no notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence;

/// The answer to an act.
#[derive(Debug, Clone)]
pub enum Reaction {
    /// To an event.
    Answer(Answer),
    /// To a read.
    Read,
}

/// A script whose line was answered otherwise.
#[derive(Debug, Clone)]
pub struct Failure {
    title: String,
    line: Line,
    problem: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nline {}: {}\n{}", self.title, self.line.number, self.line.text, self.problem)
    }
}

impl std::error::Error for Failure {}

/// Runs a script to its end, or to the first line that is answered otherwise.
pub async fn run(script: &Script, door: &mut impl Door) -> Result<(), Failure> {
    let mut tenures: BTreeMap<(String, String), Vec<Fence>> = BTreeMap::new();
    for line in &script.lines {
        let fail = |problem| Failure { title: script.title.clone(), line: line.clone(), problem };
        let handed_out = tenures.entry((line.act.scope.clone(), line.act.key.clone())).or_default();
        let fence = match line.act.tenure {
            None => None,
            Some(nth) => match nth.checked_sub(1).and_then(|index| handed_out.get(index)) {
                Some(fence) => Some(*fence),
                None => {
                    return Err(fail(format!("only {} tenures were handed out so far", handed_out.len())));
                }
            },
        };
        door.wait_until(line.at, line.ahead).await;
        let observed = door.act(&line.act, fence).await;
        if let Some((fence, _)) = observed.tenure
            && !handed_out.contains(&fence)
        {
            handed_out.push(fence);
        }
        compare(line, &shown(&observed, handed_out)).map_err(fail)?;
    }
    Ok(())
}

/// An answer in the script's own words.
struct Shown {
    words: Vec<String>,
    values: Vec<(&'static str, String)>,
}

fn compare(line: &Line, shown: &Shown) -> Result<(), String> {
    let answered = || {
        let values: Vec<_> = shown.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("answered: {} {}", shown.words.join(" "), values.join(" "))
    };
    if !shown.words.starts_with(&line.expected.words) {
        return Err(answered());
    }
    let silence = ("alarm".to_owned(), "none".to_owned());
    let unnamed = (!line.expected.values.iter().any(|(name, _)| name == "alarm")).then_some(&silence);
    for (name, expected) in line.expected.values.iter().chain(unnamed) {
        let hidden_or_equal =
            shown.values.iter().find(|(shown, _)| shown == name).is_none_or(|(_, value)| value == expected);
        if !hidden_or_equal {
            return Err(format!("{}\nexpected: {name}={expected}", answered()));
        }
    }
    Ok(())
}

fn shown(observed: &Observed, handed_out: &[Fence]) -> Shown {
    let mut values = Vec::new();
    let words = match &observed.reaction {
        Reaction::Read => vec!["read".to_owned()],
        Reaction::Answer(answer) => said(answer, &mut values),
    };
    if let Some((fence, attempt)) = observed.tenure {
        let nth = handed_out.iter().position(|known| *known == fence).map_or(0, |index| index + 1);
        values.extend([("fence", nth.to_string()), ("attempt", attempt.to_string())]);
    }
    values.extend(observed.state.map(|state| ("state", state.to_owned())));
    values.extend(observed.facts.iter().cloned());
    let alarm = observed.alarm.map(|alarm| match alarm {
        Ok(Notice::Contradiction) => "contradiction",
        Ok(Notice::Uncompared) => "uncompared",
        Ok(Notice::DeadLettered) => "dead_lettered",
        Err(Silence) => "none",
    });
    values.extend(alarm.map(|alarm| ("alarm", alarm.to_owned())));
    Shown { words, values }
}

fn said(answer: &Answer, values: &mut Vec<(&'static str, String)>) -> Vec<String> {
    let mut reply = |reply: &onceward::Reply| {
        values.push(("reply", String::from_utf8_lossy(&reply.body).into_owned()));
        reply.status.to_string()
    };
    match answer {
        Answer::Decision(Decision::Execute) => vec!["execute".to_owned()],
        Answer::Decision(Decision::Resume(point)) => {
            values.push(("point", point.name().to_owned()));
            values.push(("data", String::from_utf8_lossy(point.data()).into_owned()));
            vec!["resume".to_owned()]
        }
        Answer::Decision(Decision::Replay(replayed)) => vec!["replay".to_owned(), reply(replayed)],
        Answer::Decision(Decision::Refuse(refusal)) => vec!["refuse".to_owned(), refused(refusal, values)],
        Answer::Applied => vec!["applied".to_owned()],
        Answer::AlreadySettled(None) => vec!["already_settled".to_owned()],
        Answer::AlreadySettled(Some(settled)) => vec!["already_settled".to_owned(), reply(settled)],
        Answer::Fenced => vec!["fenced".to_owned()],
        Answer::Conflict => vec!["conflict".to_owned()],
        Answer::Lapsed => vec!["lapsed".to_owned()],
        Answer::Swept => vec!["swept".to_owned()],
        Answer::Left => vec!["left".to_owned()],
    }
}

fn refused(refusal: &Refusal, values: &mut Vec<(&'static str, String)>) -> String {
    let mut retry_after = |after: &Duration| values.push(("retry_after", format!("{}s", after.as_secs())));
    match refusal {
        Refusal::Mismatch(_) => "mismatch".to_owned(),
        Refusal::Incomparable => "incomparable".to_owned(),
        Refusal::InProgress { retry_after: after } => {
            retry_after(after);
            "in_progress".to_owned()
        }
        Refusal::Unknown { retry_after: after, letter } => {
            retry_after(after);
            let letter = match letter {
                Letter::Live => "live",
                Letter::Dead => "dead",
            };
            values.push(("letter", letter.to_owned()));
            "unknown".to_owned()
        }
    }
}
