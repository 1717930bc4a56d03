//! The keys that `[defaults]` and every `[[routes]]` share.

use onceward::event::Expiry;
use onceward::http::{CloseDelimited, Flavor, InProgress, KeyRule, Mode, Policy, SetCookie, StoreDown};
use onceward::key::Syntax;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choice::Choice;
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
        }

        /// The effective values of a route.
        #[derive(Debug, Clone)]
        pub(super) struct Rules {
            $(pub $name: $type,)+
        }

        impl Default for Defaults {
            fn default() -> Self {
                let policy = Policy::new();
                Self { $($name: $default(&policy),)+ expire: Choice::default() }
            }
        }

        impl Defaults {
            /// The effective values of requests that match no route.
            pub(super) fn rules(&self) -> Rules {
                Rules { $($name: self.$name.clone(),)+ }
            }
        }

        impl Route {
            /// Its own values, and those that it inherits.
            pub(super) fn rules(&self, defaults: &Defaults) -> Rules {
                Rules { $($name: self.$name.clone().unwrap_or_else(|| defaults.$name.clone()),)+ }
            }

            /// The keys that it sets, without `match` and `protect`.
            pub(super) fn keys_set(&self) -> Vec<&'static str> {
                let mut keys = Vec::new();
                $(if self.$name.is_some() { keys.push(stringify!($name)); })+
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
