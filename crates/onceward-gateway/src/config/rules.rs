//! The keys that `[defaults]` and every `[[routes]]` share.

use onceward::event::Expiry;
use onceward::http::{CloseDelimited, Flavor, InProgress, KeyRule, Mode, Policy, SetCookie, StoreDown};
use onceward::key::Syntax;
use onceward::receipts::TableName;
use onceward::reconcile::{FindTerms, Reconciling};
use onceward::record::Receipts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::Choice;
use super::secret_source::SecretSource;
use super::values::{MethodName, Size, Time};
use crate::settings::LapseRule;

/// Generates three types from one list of keys, so that no type can lack one: `Defaults`, where each has a value; `Route`,
/// where each may be left out; and `Rules`, a route's values after it inherited from the defaults.
macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr;)+) => {
        /// How requests are treated, except where a route differs.
        #[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub(super) struct Defaults {
            $($(#[doc = $doc])+ pub $name: $type,)+
            /// How long work that goes on after its timeout is left alone before its outcome is found out. Without it: the larger of `timeout` and `lease`.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub resume_after: Option<Time>,
            /// What becomes of a record past its window, for the whole store: it is removed (`delete`), or kept without its body, for audit (`soft`).
            pub expire: Choice<Expiry>,
        }

        /// What differs from the defaults on a route. What is left out is as in `[defaults]`.
        #[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(super) struct Route {
            /// Which requests: `METHOD /path`, or `/path` for all `methods`. `{name}` is one segment, a final `*` the rest.
            #[serde(rename = "match")]
            pub pattern: String,
            /// `false` lets every request pass unprotected, such as those answered by an endless stream.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub protect: Option<bool>,
            $($(#[doc = $doc])+ #[serde(default, skip_serializing_if = "Option::is_none")] pub $name: Option<$type>,)+
            /// How long work that goes on after its timeout is left alone before its outcome is found out. Without it: the larger of `timeout` and `lease`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub resume_after: Option<Time>,
            /// The table in the handler's own database that proves what was committed.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub receipts: Option<ReceiptTable>,
            /// How often, and how soon again, unknown outcomes are asked about.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub reconcile: Option<Reconcile>,
        }

        /// The effective values of a route.
        #[derive(Debug, Clone)]
        pub(super) struct Rules {
            $(pub $name: $type,)+
            pub resume_after: Option<Time>,
            pub receipts: Receipts,
        }

        impl Default for Defaults {
            fn default() -> Self {
                let policy = Policy::new();
                Self { $($name: $default(&policy),)+ resume_after: None, expire: Choice::default() }
            }
        }

        impl Defaults {
            /// The effective values of requests that match no route.
            pub(super) fn rules(&self) -> Rules {
                Rules { $($name: self.$name.clone(),)+ resume_after: self.resume_after, receipts: Receipts::None }
            }
        }

        impl Route {
            /// Its own values, and those that it inherits.
            pub(super) fn rules(&self, defaults: &Defaults) -> Rules {
                Rules {
                    $($name: self.$name.clone().unwrap_or_else(|| defaults.$name.clone()),)+
                    resume_after: self.resume_after.or(defaults.resume_after),
                    receipts: if self.receipts.is_some() { Receipts::Kept } else { Receipts::None },
                }
            }

            /// The keys that it sets, without `match` and `protect`.
            pub(super) fn keys_set(&self) -> Vec<&'static str> {
                let mut keys = Vec::new();
                $(if self.$name.is_some() { keys.push(stringify!($name)); })+
                let others = [
                    ("resume_after", self.resume_after.is_some()),
                    ("receipts", self.receipts.is_some()),
                    ("reconcile", self.reconcile.is_some()),
                ];
                keys.extend(others.into_iter().filter(|(_, set)| *set).map(|(key, _)| key));
                keys
            }
        }
    };
}

rules! {
    /// Which methods are protected, where a route's `match` names none.
    methods: Vec<MethodName> = |policy: &Policy| policy.methods.iter().cloned().map(MethodName).collect();
    /// Whether a request must bring a key: without one it is refused (`required`) or passes unprotected (`optional`).
    key: Choice<KeyRule> = |policy: &Policy| Choice(policy.key);
    /// Which spellings of a key are accepted: `"k"` and `k` (`lenient`), or only the quoted one (`strict`).
    syntax: Choice<Syntax> = |policy: &Policy| Choice(policy.syntax);
    /// Shorter keys are refused. 16 is a good floor where callers share a scope.
    min_key_length: usize = |policy: &Policy| policy.min_key_length;
    /// Whose statuses and headers refusals and replays have: the IETF draft's (`ietf`) or Stripe's (`stripe`).
    flavor: Choice<Flavor> = |policy: &Policy| Choice(policy.flavor);
    /// What a retry gets while the first request runs: 409 (`conflict`), a wait and then the answer (`wait`), or 202 and where to ask (`accepted`).
    in_progress: Choice<InProgress> = |policy: &Policy| Choice(policy.in_progress);
    /// How long a caller may wait for another caller's execution: always with `in_progress = "wait"`, else if it asks to.
    wait: Time = |policy: &Policy| Time(policy.wait);
    /// After this long the outcome counts as unknown. What the upstream still answers is accepted.
    timeout: Time = |policy: &Policy| Time(policy.timeout);
    /// After this long the client is told that the work goes on (504). Counts only where it is shorter than `timeout`.
    respond_within: Time = |policy: &Policy| Time(policy.respond_within);
    /// How long an execution owns its key without renewing; longer work renews by itself.
    lease: Time = |policy: &Policy| Time(policy.lease);
    /// What a lapsed lease means: an unknown outcome (`unknown`), or going on from a recovery point, where there is one (`resume`).
    on_lapse: Choice<LapseRule> = |_: &Policy| Choice::default();
    /// After this long an unknown outcome that nothing can find out is a dead letter: it waits for an operator.
    dead_letter_after: Time = |_: &Policy| Time(Reconciling::default().give_up_after);
    /// How long a completed answer is promised to be replayed. It is published to clients.
    retention: Time = |policy: &Policy| Time(policy.retention);
    /// How much longer than promised it is kept, at most.
    grace: Time = |policy: &Policy| Time(policy.grace);
    /// What happens to keyed requests while the store is away: 503 (`reject`), or on they go unprotected (`pass`).
    store_down: Choice<StoreDown> = |policy: &Policy| Choice(policy.store_down);
    /// Statuses of the upstream that prove that nothing was done.
    retryable: Vec<u16> = |policy: &Policy| policy.retryable.clone();
    /// Statuses of the upstream that leave the outcome unknown.
    unknown: Vec<u16> = |policy: &Policy| policy.unknown.clone();
    /// Bytes of a keyed request's body. It is held in memory until it is answered.
    max_request_body: Size = |policy: &Policy| Size(policy.max_request_body as u64);
    /// Bytes of an answer's body. It is stored, and held in memory until it is.
    max_response_body: Size = |policy: &Policy| Size(policy.max_response_body as u64);
    /// Whether an answer that ends with its connection is whole: if it is JSON (`proven`), always (`accept`), never (`unknown`).
    close_delimited: Choice<CloseDelimited> = |policy: &Policy| Choice(policy.close_delimited);
    /// What makes two requests the same beside method, path, query and body.
    fingerprint: Fingerprint = |_: &Policy| Fingerprint::default();
    /// Stored with every reply, so that a new release can recognise an old reply.
    response_version: u32 = |policy: &Policy| policy.response_version;
    /// Whether `Set-Cookie` is stored and replayed (`allow`), or dropped from everything but the first answer (`drop`).
    set_cookie: Choice<SetCookie> = |policy: &Policy| Choice(policy.set_cookie);
    /// Whether retries are held back (`enforce`), or only counted (`observe`).
    mode: Choice<Mode> = |policy: &Policy| Choice(policy.mode);
}

/// What makes two requests the same.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fingerprint {
    /// Headers whose values count.
    pub headers: Vec<String>,
    /// JSON pointers to what is left out of JSON bodies.
    pub ignore: Vec<String>,
}

/// The table in the handler's own database that proves what was committed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReceiptTable {
    /// Where that database is: `postgres://…`, or `sqlite:PATH`. From a variable or a file, because it may have a password.
    pub url: SecretSource,
    /// The name of the table, as `onceward receipts --print-sql` made it.
    #[serde(default = "default_table")]
    pub table: String,
}

fn default_table() -> String {
    TableName::default().to_string()
}

/// How often, and how soon again, unknown outcomes are asked about.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Reconcile {
    /// Findings that decide nothing until the operation is a dead letter. A database that does not answer is an alarm, not a finding.
    pub attempts: u32,
    /// The pause after the first of them. It doubles, with jitter.
    pub backoff: Time,
    /// The longest pause.
    pub max_backoff: Time,
}

impl Default for Reconcile {
    fn default() -> Self {
        let terms = FindTerms::default();
        Self { attempts: terms.attempts, backoff: Time(terms.backoff), max_backoff: Time(terms.max_backoff) }
    }
}

impl Reconcile {
    pub(super) fn terms(&self) -> FindTerms {
        FindTerms::default().attempts(self.attempts).backoff(self.backoff.0).max_backoff(self.max_backoff.0)
    }
}
