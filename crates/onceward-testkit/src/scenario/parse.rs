//! Reads a script. An unknown word is refused, with its line and the words that are allowed there.

use std::fmt;
use std::time::Duration;

use onceward::event::{Control, Expiry, FindStart, FindTerms};
use onceward::{
    OnLapse, Terms,
    record::{Cause, Receipts, RecordFormat},
};

use super::{Act, Answered, Deed, Ending, Expected, FoundOut, Line, Script, Voiding};

/// A script that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError {
    /// Where, from 1.
    pub line: usize,
    /// What was found and what was expected.
    pub problem: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for ScriptError {}

type Parsed<T> = Result<T, String>;

/// What earlier lines set for later ones.
struct Standing {
    terms: Terms,
    format: RecordFormat,
    receipts: Receipts,
    ahead: Duration,
    now: Duration,
    scope: String,
    key: Option<String>,
}

pub(super) fn script(text: &str) -> Result<Script, ScriptError> {
    let mut lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
    let title = match lines.next() {
        Some((_, line)) if line.starts_with("# ") && line.ends_with('.') => line[2..].to_owned(),
        other => {
            let line = other.map_or(1, |(number, _)| number);
            let problem =
                "a script begins with its title: `# A sentence that ends with a full stop.`".to_owned();
            return Err(ScriptError { line, problem });
        }
    };
    let mut standing = Standing {
        terms: Terms { grace: Duration::ZERO, ..Terms::default() },
        format: RecordFormat::Two,
        receipts: Receipts::None,
        ahead: Duration::ZERO,
        now: Duration::ZERO,
        scope: "tenant".to_owned(),
        key: None,
    };
    let mut script = Script { title, lines: Vec::new() };
    for (number, text) in lines.filter(|(_, line)| !line.starts_with('#')) {
        let line = line(text, &mut standing).map_err(|problem| ScriptError { line: number, problem })?;
        script.lines.extend(line.map(|line| Line { number, text: text.to_owned(), ..line }));
    }
    if script.lines.is_empty() {
        return Err(ScriptError { line: 1, problem: "nothing happens in this script".to_owned() });
    }
    Ok(script)
}

fn line(text: &str, standing: &mut Standing) -> Parsed<Option<Line>> {
    if let Some(rest) = text.strip_prefix("terms ") {
        terms(&mut Words::of(rest)?, standing)?;
        return Ok(None);
    }
    if let Some(rest) = text.strip_prefix("clock ") {
        let mut words = Words::of(rest)?;
        standing.ahead = duration(&words.need("ahead")?)?;
        return words.done().map(|()| None);
    }
    let (done, answer) = text.split_once("->").ok_or("expected `-> ANSWER` after what is done")?;
    let mut words = Words::of(done)?;
    let at = duration(&words.word("a time, like 61s")?)?;
    if at < standing.now {
        return Err(format!("{at:?} lies before the line above, at {:?}", standing.now));
    }
    standing.now = at;
    let act = act(&mut words, standing)?;
    words.done()?;
    let expected = expected(Words::of(answer)?)?;
    Ok(Some(Line { number: 0, text: String::new(), at, ahead: standing.ahead, act, expected }))
}

fn terms(words: &mut Words, standing: &mut Standing) -> Parsed<()> {
    let mut terms = standing.terms.clone();
    for (name, term) in
        [("lease", &mut terms.lease), ("retention", &mut terms.retention), ("grace", &mut terms.grace)]
    {
        if let Some(value) = words.value(name) {
            *term = duration(&value)?;
        }
    }
    if let Some(format) = words.value("format") {
        let known = format.parse().ok().and_then(RecordFormat::from_number);
        standing.format = known.ok_or_else(|| format!("format={format}: expected 1 or 2"))?;
    }
    standing.receipts = match words.value("receipts").as_deref() {
        None => standing.receipts,
        Some("none") => Receipts::None,
        Some("kept") => Receipts::Kept,
        Some(other) => return Err(format!("receipts={other}: expected none or kept")),
    };
    match words.value("on_lapse").as_deref() {
        None => {}
        Some("unknown") => terms.on_lapse = OnLapse::Unknown,
        Some("resume") => {
            let attempts = number(&words.need("attempts")?)?;
            let within =
                words.value("within").map_or(Ok(Duration::from_secs(3600)), |text| duration(&text))?;
            terms.on_lapse = OnLapse::Resume { attempts, within };
        }
        Some(other) => return Err(format!("on_lapse={other}: expected unknown or resume")),
    }
    standing.terms = terms;
    words.done()
}

fn act(words: &mut Words, standing: &mut Standing) -> Parsed<Act> {
    let actor = words.word("who acts, like A")?;
    let verb = words.word("a verb, like claims")?;
    let deed = match verb.as_str() {
        "claims" => {
            standing.key = Some(words.word("a key, like k")?);
            Deed::Claim {
                body: words.need("body")?,
                rules: words.value("rules"),
                target: words.value("target"),
                format: standing.format,
                receipts: standing.receipts,
                terms: standing.terms.clone(),
            }
        }
        "reads" => Deed::Read,
        "resumes" => Deed::Resume,
        "renews" => Deed::Renew,
        "checkpoints" => {
            Deed::Checkpoint { point: words.need("point")?, data: words.value("data").unwrap_or_default() }
        }
        "settles" => match words.word("a status, retryable, voided or unknown")?.as_str() {
            "retryable" => Deed::Settle(Ending::Retryable),
            "voided" => Deed::Settle(Ending::Voided(voiding(words)?)),
            "unknown" => Deed::Settle(Ending::Unknown(match words.value("cause").as_deref() {
                None | Some("lost") => Cause::Lost,
                Some("said") => Cause::Said,
                Some("done_not_kept") => Cause::DoneNotKept,
                Some(other) => return Err(format!("cause={other}: expected lost, said or done_not_kept")),
            })),
            status => Deed::Settle(Ending::Completed(answered(status, words)?)),
        },
        "gives" => {
            words.one_of(&["evidence"])?;
            let status = words.word("a status")?;
            Deed::Evidence(answered(&status, words)?)
        }
        "asks" => Deed::Ask {
            hold: words.value("hold").map_or(Ok(Duration::from_secs(10)), |text| duration(&text))?,
            start: if words.take("now") { FindStart::Now } else { FindStart::WhenDue },
        },
        "finds" => {
            Deed::Found { finding: found_out(words)?, control: control(words)?, terms: find_terms(words)? }
        }
        "gives_up" => Deed::GiveUp { after: duration(&words.need("after")?)? },
        "resolves" => match words.one_of(&["completed", "retryable"])? {
            "retryable" => Deed::Resolve(Ending::Retryable),
            _ => {
                let status = words.word("a status")?;
                Deed::Resolve(Ending::Completed(answered(&status, words)?))
            }
        },
        "expires" => {
            Deed::Expire { after: words.value("after").map_or(Ok(Duration::ZERO), |text| duration(&text))? }
        }
        "sweeps" => match words.one_of(&["hard", "soft"])? {
            "soft" => Deed::Sweep(Expiry::Soft),
            _ => Deed::Sweep(Expiry::Delete),
        },
        other => {
            return Err(format!(
                "{other:?} is no verb: expected claims, reads, resumes, renews, checkpoints, settles, gives evidence, \
                 asks, finds, gives_up, resolves, expires or sweeps"
            ));
        }
    };
    let tenure = match &deed {
        Deed::Renew | Deed::Checkpoint { .. } | Deed::Settle(_) => Some(number(&words.need("fence")?)?),
        Deed::Found { .. } => words.value("fence").map(|text| number(&text)).transpose()?,
        Deed::Claim { .. }
        | Deed::Read
        | Deed::Resume
        | Deed::Evidence(_)
        | Deed::Ask { .. }
        | Deed::GiveUp { .. }
        | Deed::Resolve(_)
        | Deed::Expire { .. }
        | Deed::Sweep(_) => None,
    };
    if let Some(scope) = words.value("scope") {
        standing.scope = scope;
    }
    if let Some(key) = words.value("key") {
        standing.key = Some(key);
    }
    let key = standing.key.clone().ok_or("no key was claimed before this line: name one with key=")?;
    Ok(Act { actor, scope: standing.scope.clone(), key, tenure, deed })
}

fn found_out(words: &mut Words) -> Parsed<Option<FoundOut>> {
    const FINDINGS: [&str; 7] =
        ["completed", "done", "absent", "voided", "inconclusive", "ambiguous", "nobody"];
    Ok(Some(match words.one_of(&FINDINGS)? {
        "completed" => {
            let status = words.word("a status")?;
            FoundOut::Completed(answered(&status, words)?)
        }
        "done" => FoundOut::Done,
        "absent" => {
            FoundOut::Absent(raised(words)?.map(|raised| Voiding { raised, point: words.value("point") }))
        }
        "voided" => FoundOut::Voided(voiding(words)?),
        "inconclusive" => FoundOut::Inconclusive,
        "ambiguous" => FoundOut::Ambiguous,
        _ => return Ok(None),
    }))
}

fn voiding(words: &mut Words) -> Parsed<Voiding> {
    Ok(Voiding { raised: raised(words)?.unwrap_or(1), point: words.value("point") })
}

fn raised(words: &mut Words) -> Parsed<Option<u64>> {
    words.value("raised").map(|text| number(&text)).transpose()
}

fn control(words: &mut Words) -> Parsed<Control> {
    match words.value("control").as_deref() {
        None => Ok(Control::Made),
        Some("none") => Ok(Control::None),
        Some(other) => Err(format!("control={other} is unknown: expected control=none")),
    }
}

fn find_terms(words: &mut Words) -> Parsed<FindTerms> {
    let mut terms = FindTerms::default();
    if let Some(attempts) = words.value("attempts") {
        terms = terms.attempts(number(&attempts)?);
    }
    if let Some(backoff) = words.value("backoff") {
        terms = terms.backoff(duration(&backoff)?);
    }
    if let Some(after) = words.value("absent_after") {
        terms = terms.absent_after(Some(duration(&after)?));
    }
    Ok(terms)
}

fn answered(status: &str, words: &mut Words) -> Parsed<Answered> {
    let refused = || format!("{status:?} is no status: expected a number from 100 to 599");
    let status = status.parse().ok().filter(|status| (100..600).contains(status)).ok_or_else(refused)?;
    Ok(Answered { status, body: words.value("reply").unwrap_or_default() })
}

/// Each answer with the values that may be asserted of it besides `state` and `alarm`.
const ANSWERS: [(&str, &[&str]); 16] = [
    ("execute", &["fence", "attempt"]),
    ("resume", &["fence", "attempt", "point", "data"]),
    ("replay STATUS", &["reply"]),
    ("refuse mismatch", &[]),
    ("refuse incomparable", &[]),
    ("refuse in_progress", &["retry_after"]),
    ("refuse unknown", &["retry_after", "letter"]),
    ("applied", &[]),
    ("already_settled", &[]),
    ("already_settled STATUS", &["reply"]),
    ("fenced", &[]),
    ("conflict", &[]),
    ("lapsed", &[]),
    ("swept", &[]),
    ("left", &[]),
    ("read", &[]),
];

const STATES: [&str; 6] = ["in_progress", "completed", "failed_retryable", "unknown", "expired", "none"];
const ALARMS: [&str; 4] = ["contradiction", "uncompared", "dead_lettered", "none"];

fn expected(words: Words) -> Parsed<Expected> {
    let form = words.words.iter().map(|word| match word.parse::<u16>() {
        Ok(100..600) => "STATUS",
        _ => word.as_str(),
    });
    let form = form.collect::<Vec<_>>().join(" ");
    let Some((_, values)) = ANSWERS.iter().find(|(answer, _)| *answer == form) else {
        let known = ANSWERS.map(|(answer, _)| answer).join(", ");
        return Err(format!("{:?} is no answer: expected one of {known}", words.words.join(" ")));
    };
    for (name, value) in &words.values {
        let known: &[&str] = match name.as_str() {
            "state" => &STATES,
            "alarm" => &ALARMS,
            "cause" => &["lost", "said", "done_not_kept"],
            "doubt" | "voided" => &["yes", "no"],
            "naming" => &["bare", "windowed"],
            "since" => {
                duration(value)?;
                continue;
            }
            name if !values.contains(&name) => {
                let names: Vec<_> = ["state", "alarm"].iter().chain(*values).copied().collect();
                return Err(format!("`{form}` has no {name}=: expected {}", names.join(", ")));
            }
            "letter" => &["live", "dead"],
            "retry_after" => {
                duration(value)?;
                continue;
            }
            _ => continue,
        };
        if !known.contains(&value.as_str()) {
            return Err(format!("{name}={value}: expected {}", known.join(", ")));
        }
    }
    Ok(Expected { words: words.words, values: words.values })
}

/// What is left of a line to be understood.
struct Words {
    words: Vec<String>,
    values: Vec<(String, String)>,
}

impl Words {
    fn of(text: &str) -> Parsed<Self> {
        let mut all = Self { words: Vec::new(), values: Vec::new() };
        for word in text.split_whitespace() {
            match word.split_once('=') {
                None => all.words.push(word.to_owned()),
                Some((name, _)) if all.values.iter().any(|(known, _)| known == name) => {
                    return Err(format!("{name}= is given twice"));
                }
                Some((name, value)) => all.values.push((name.to_owned(), value.to_owned())),
            }
        }
        Ok(all)
    }

    fn word(&mut self, what: &str) -> Parsed<String> {
        if self.words.is_empty() { Err(format!("expected {what}")) } else { Ok(self.words.remove(0)) }
    }

    fn one_of(&mut self, known: &[&'static str]) -> Parsed<&'static str> {
        let found = self.word(&known.join(" or "))?;
        let known_word = known.iter().find(|word| **word == found);
        known_word.copied().ok_or_else(|| format!("{found:?}: expected {}", known.join(" or ")))
    }

    /// Whether this word is next, which then is taken.
    fn take(&mut self, word: &str) -> bool {
        let next = self.words.first().is_some_and(|next| next == word);
        if next {
            self.words.remove(0);
        }
        next
    }

    fn value(&mut self, name: &str) -> Option<String> {
        let at = self.values.iter().position(|(known, _)| known == name)?;
        Some(self.values.remove(at).1)
    }

    fn need(&mut self, name: &str) -> Parsed<String> {
        self.value(name).ok_or_else(|| format!("expected {name}="))
    }

    /// Fails on unused values: a misspelt name must not be a silent no-op.
    fn done(&self) -> Parsed<()> {
        let values = self.values.iter().map(|(name, value)| format!("{name}={value}"));
        let left: Vec<_> = self.words.iter().cloned().chain(values).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("`{}` has no meaning here", left.join(" "))) }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Parsed<T> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

fn duration(text: &str) -> Parsed<Duration> {
    let refused =
        || format!("{text:?} is no time: expected a number and one of us, ms, s, m, h, d, like 61s");
    let unit_at = text.find(|character: char| !character.is_ascii_digit()).ok_or_else(refused)?;
    let (count, unit) = text.split_at(unit_at);
    let micros: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(refused()),
    };
    let count: u64 = count.parse().map_err(|_| refused())?;
    count.checked_mul(micros).map(Duration::from_micros).ok_or_else(refused)
}
