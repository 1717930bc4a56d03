//! Reads from a request's headers whose key it is.

use std::fmt;
use std::str::FromStr;

use ::http::header::{AUTHORIZATION, CONNECTION, HOST};
use ::http::{HeaderMap, HeaderName};

use super::credential::{Unusable, basic_user, canonical};
use super::list_header::members;
use crate::digest::Digest;
use crate::fingerprint::{changes_with_every_try, is_own};
use crate::{Scope, Secret};

/// How a request's scope is made. All parts together identify the tenant.
///
/// There is no default, because what makes a tenant is a decision. [`Identity`](crate::Identity) is given the text form, so
/// that a change of the rules is noticed.
///
/// Tenants are only separate if their identity is verified. `authorization` takes the whole credential into the scope, so a
/// wrong credential is another tenant. `header:NAME` and `basic:user` take a name that any client can send. They need a
/// proxy or a layer in front that verifies the name, which [`parse_verified`](Self::parse_verified) declares.
///
/// ```
/// use onceward::http::ScopeRules;
/// let rules = ScopeRules::parse(["authorization"])?;
/// assert_eq!(rules.to_string(), "authorization");
/// assert!(ScopeRules::parse(["header:X-Tenant"]).is_err());
/// // A proxy in front authenticates the caller, and sets X-Tenant itself.
/// let rules = ScopeRules::parse_verified(["header:X-Tenant", "authorization"])?;
/// assert_eq!(rules.to_string(), "header:x-tenant,authorization");
/// assert!(ScopeRules::parse(["jwt:sub"]).is_err());
/// # Ok::<(), onceward::http::ScopeRuleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeRules(Vec<ScopeRule>);

/// One part of a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScopeRule {
    /// `header:NAME`: the header's value. Must be verified: a client can send any.
    Header(HeaderName),
    /// `authorization`: a hash of the Authorization header, for credentials that stay the same: Basic, and Bearer with an
    /// opaque token. The scheme's case, and the white space after it, make no difference.
    Authorization,
    /// `basic:user`: the user name of HTTP Basic, whatever the password. Must be verified: the password is not checked.
    BasicUser,
    /// `fixed:NAME`: all callers share one scope, so a caller that knows a key and its payload gets the stored answer.
    Fixed(Box<str>),
}

/// A rule that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeRuleError {
    /// There is no rule.
    #[error("the scope is empty: name what makes a tenant, such as \"authorization\" or \"header:X-Tenant\"")]
    None,
    /// There is no such rule.
    #[error(
        "{rule:?} is no scope rule: use \"header:NAME\", \"authorization\", \"basic:user\" or \"fixed:NAME\""
    )]
    NoSuchRule {
        /// The rule as it was given.
        rule: String,
    },
    /// The rule belongs to a later release.
    #[error("{rule:?} is not supported yet: \"jwt:CLAIM\" and \"auth:NAME\" follow in a later release")]
    Later {
        /// The rule as it was given.
        rule: String,
    },
    /// Not a header's name.
    #[error("{rule:?} names no header: use letters, digits and hyphens")]
    HeaderName {
        /// The rule as it was given.
        rule: String,
    },
    /// Each key would be a scope of its own.
    #[error(
        "{rule:?} would make each key its own scope, so that a caller that sends another's key would get the other's answer: name what makes a tenant"
    )]
    TheKey {
        /// The rule as it was given.
        rule: String,
    },
    /// It would accept credentials that the rule `authorization` refuses, such as a token that is refreshed.
    #[error(
        "{rule:?} would accept credentials that change with every try, so that a retry would be a new operation: use \"authorization\", which refuses them"
    )]
    Credential {
        /// The rule as it was given.
        rule: String,
    },
    /// The header does not identify the caller, or changes with every try.
    #[error("{rule:?} {why}: name a header that says who calls, and stays the same with every retry")]
    NoTenant {
        /// The rule as it was given.
        rule: String,
        /// What is wrong with the header.
        why: &'static str,
    },
    /// The same part is there twice.
    #[error("{rule:?} is in the scope twice, and the second adds nothing: remove it")]
    Twice {
        /// The rule.
        rule: String,
    },
    /// It needs verification, and none was declared.
    #[error(
        "{rule:?} is believed without a password or signature, so that a client that sends another's name would get the other's stored answers and could occupy its keys: use \"authorization\", or declare with ScopeRules::parse_verified that something in front verifies it"
    )]
    Unverified {
        /// The rule.
        rule: String,
    },
    /// Longer than a scope may be.
    #[error("{rule:?} is empty or too long for a scope")]
    Fixed {
        /// The rule as it was given.
        rule: String,
    },
}

/// Why a request has no scope. It names the missing part, and never repeats the value that was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeMissing {
    /// A part is not there.
    #[error("the request has no usable {part} header, which says whose key this is")]
    Absent {
        /// The header.
        part: HeaderName,
    },
    /// A part is there twice. To choose one of them could merge two tenants.
    #[error("the request has more than one {part} header: send exactly one")]
    Several {
        /// The header.
        part: HeaderName,
    },
    /// The client tells proxies to remove it, so it may be missing on a retry.
    #[error(
        "the Connection header names {part}, which says whose key this is and which proxies would remove: leave it out there"
    )]
    HopByHop {
        /// The header.
        part: HeaderName,
    },
    /// A token that is refreshed would make a retry a new operation.
    #[error(
        "the Authorization header holds a JSON Web Token, which changes when it is refreshed and would make a retry a new operation: this service's operator should use the scope rule jwt:sub instead of authorization, and until there is that rule a header that a verifying proxy sets"
    )]
    Refreshable,
    /// Its value may change with every try, because of its scheme, or it has no token.
    #[error(
        "the Authorization header does not say whose key this is in a way that stays the same with every retry: send Basic, or Bearer with an opaque token"
    )]
    Changing,
    /// It is not Basic, or has no user name.
    #[error("the Authorization header has no user name of the Basic scheme")]
    NotBasic,
    /// All parts together are longer than a scope may be.
    #[error("the parts that say whose key this is are too long together")]
    TooLong,
}

/// Longer values are hashed, so that several parts fit a scope.
const PLAIN_BYTES_MAX: usize = 100;
/// Marks a hashed value. A sent value with this prefix is hashed as well, so that no client can imitate a hash.
const HASHED: &str = "sha256-";

impl ScopeRules {
    /// Reads rules that need no verification in front. Refuses `header:NAME` and `basic:user`.
    pub fn parse<'a>(rules: impl IntoIterator<Item = &'a str>) -> Result<Self, ScopeRuleError> {
        let rules = Self::parse_verified(rules)?;
        match rules.0.iter().find(|rule| rule.needs_verification()) {
            Some(rule) => Err(ScopeRuleError::Unverified { rule: rule.to_string() }),
            None => Ok(rules),
        }
    }

    /// Reads rules, and declares that a proxy or a layer in front verifies the values that they take from a request.
    ///
    /// For `header:NAME` it must authenticate the caller, set the header itself, and remove one that the client sent. For
    /// `basic:user` it must refuse a wrong password. Without it, a client that sends another's name gets the other's stored
    /// answers, and can occupy its keys.
    pub fn parse_verified<'a>(rules: impl IntoIterator<Item = &'a str>) -> Result<Self, ScopeRuleError> {
        let rules = Self::parse_used(rules)?;
        rules.outdated().map_or(Ok(rules), Err)
    }

    /// Reads rules for a store that was used with them. Unlike [`parse_verified`](Self::parse_verified), it accepts rules that
    /// are [outdated](Self::outdated), because with other rules every key in that store would be forgotten.
    ///
    /// The caller also declares that the store has the identity that is made of these rules; see
    /// [`Identity::recognised_by`](crate::Identity::recognised_by). A new store should not begin with outdated rules.
    pub fn parse_used<'a>(rules: impl IntoIterator<Item = &'a str>) -> Result<Self, ScopeRuleError> {
        let rules: Vec<ScopeRule> = rules.into_iter().map(str::parse).collect::<Result<_, _>>()?;
        if rules.is_empty() { Err(ScopeRuleError::None) } else { Ok(Self(rules)) }
    }

    /// Why these rules are refused for a new store, though earlier versions accepted them: `header:Host`, or a part twice.
    pub fn outdated(&self) -> Option<ScopeRuleError> {
        let twice = |index: usize, rule: &ScopeRule| {
            self.0[..index].contains(rule).then(|| ScopeRuleError::Twice { rule: rule.to_string() })
        };
        self.0.iter().enumerate().find_map(|(index, rule)| rule.outdated().or_else(|| twice(index, rule)))
    }

    /// The scope of a request.
    pub(super) fn scope_of(
        &self,
        headers: &HeaderMap,
        secret: Option<&Secret>,
    ) -> Result<Scope, ScopeMissing> {
        let parts: Vec<String> =
            self.0.iter().map(|rule| rule.part(headers, secret)).collect::<Result<_, _>>()?;
        Scope::from_parts(parts.iter().map(String::as_str)).map_err(|_| ScopeMissing::TooLong)
    }
}

impl FromStr for ScopeRule {
    type Err = ScopeRuleError;

    fn from_str(text: &str) -> Result<Self, ScopeRuleError> {
        let rule = || text.chars().take(64).collect::<String>();
        match text.split_once(':') {
            None if text == "authorization" => Ok(Self::Authorization),
            Some(("basic", "user")) => Ok(Self::BasicUser),
            Some(("header", name)) => {
                let name = HeaderName::from_bytes(name.as_bytes())
                    .map_err(|_| ScopeRuleError::HeaderName { rule: rule() })?;
                match unfit(&name) {
                    None => Ok(Self::Header(name)),
                    Some(Unfit::TheKey) => Err(ScopeRuleError::TheKey { rule: rule() }),
                    Some(Unfit::Credential) => Err(ScopeRuleError::Credential { rule: rule() }),
                    Some(Unfit::NoTenant(why)) => Err(ScopeRuleError::NoTenant { rule: rule(), why }),
                }
            }
            Some(("fixed", name)) => match Scope::new(name) {
                Ok(_) => Ok(Self::Fixed(name.into())),
                Err(_) => Err(ScopeRuleError::Fixed { rule: rule() }),
            },
            Some(("jwt" | "auth", _)) => Err(ScopeRuleError::Later { rule: rule() }),
            None | Some(_) => Err(ScopeRuleError::NoSuchRule { rule: rule() }),
        }
    }
}

/// Why a header cannot name a tenant.
enum Unfit {
    TheKey,
    Credential,
    NoTenant(&'static str),
}

fn unfit(name: &HeaderName) -> Option<Unfit> {
    match name.as_str() {
        "idempotency-key" => Some(Unfit::TheKey),
        "authorization" => Some(Unfit::Credential),
        name if is_own(name) => {
            Some(Unfit::NoTenant("is removed from every request, because only Onceward sets it"))
        }
        name if changes_with_every_try(name) => Some(Unfit::NoTenant("is another one with every try")),
        _ => None,
    }
}

impl fmt::Display for ScopeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Authorization => f.write_str("authorization"),
            Self::BasicUser => f.write_str("basic:user"),
            Self::Fixed(name) => write!(f, "fixed:{name}"),
        }
    }
}

impl fmt::Display for ScopeRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            rule.fmt(f)?;
        }
        Ok(())
    }
}

impl ScopeRule {
    /// Why this part is refused for a new store, though earlier versions accepted it.
    fn outdated(&self) -> Option<ScopeRuleError> {
        let why = "says which service is called, and not by whom";
        matches!(self, Self::Header(name) if name == HOST)
            .then(|| ScopeRuleError::NoTenant { rule: self.to_string(), why })
    }

    /// Whether any client can send the value that it takes, so that it must be verified in front.
    fn needs_verification(&self) -> bool {
        match self {
            Self::Header(_) | Self::BasicUser => true,
            Self::Authorization | Self::Fixed(_) => false,
        }
    }

    fn part(&self, headers: &HeaderMap, secret: Option<&Secret>) -> Result<String, ScopeMissing> {
        match self {
            Self::Fixed(name) => Ok(name.to_string()),
            Self::Header(name) => Ok(plain_or_hashed(only(headers, name)?, secret)),
            Self::Authorization => {
                let value = only(headers, &AUTHORIZATION)?;
                let credential = canonical(value).map_err(|unusable| match unusable {
                    Unusable::Changing => ScopeMissing::Changing,
                    Unusable::Refreshed => ScopeMissing::Refreshable,
                })?;
                Ok(hashed(&credential, secret))
            }
            Self::BasicUser => {
                let user = basic_user(only(headers, &AUTHORIZATION)?).ok_or(ScopeMissing::NotBasic)?;
                Ok(plain_or_hashed(&user, secret))
            }
        }
    }
}

/// The one value of a header.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a [u8], ScopeMissing> {
    if members(headers, &CONNECTION).any(|named| named.eq_ignore_ascii_case(name.as_str())) {
        return Err(ScopeMissing::HopByHop { part: name.clone() });
    }
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(_), Some(_)) => Err(ScopeMissing::Several { part: name.clone() }),
        (Some(line), None) if !line.as_bytes().trim_ascii().is_empty() => Ok(line.as_bytes().trim_ascii()),
        (None | Some(_), None) | (None, Some(_)) => Err(ScopeMissing::Absent { part: name.clone() }),
    }
}

fn plain_or_hashed(value: &[u8], secret: Option<&Secret>) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if text.len() <= PLAIN_BYTES_MAX && !text.starts_with(HASHED) => text.to_owned(),
        Ok(_) | Err(_) => hashed(value, secret),
    }
}

/// Keyed where the engine has a secret, so that passwords cannot be guessed from a stolen database.
fn hashed(value: &[u8], secret: Option<&Secret>) -> String {
    let mut digest = Digest::new(secret, "onceward scope part");
    digest.part(value);
    digest.finish().iter().fold(HASHED.to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn scope(rules: &[&str], lines: &[(&'static str, &str)]) -> Result<Scope, ScopeMissing> {
        ScopeRules::parse_verified(rules.iter().copied()).unwrap().scope_of(&headers(lines), None)
    }

    #[test]
    fn every_part_must_be_there_exactly_once() {
        let rules = ["header:x-tenant", "authorization"];
        let both = [("x-tenant", "acme"), ("authorization", "Bearer sk_1")];
        assert!(scope(&rules, &both).is_ok());
        assert!(matches!(scope(&rules, &both[..1]), Err(ScopeMissing::Absent { .. })));
        assert!(matches!(scope(&rules, &both[1..]), Err(ScopeMissing::Absent { .. })));
        let empty = [("x-tenant", " "), both[1]];
        assert!(matches!(scope(&rules, &empty), Err(ScopeMissing::Absent { .. })));
        let twice = [both[0], ("x-tenant", "other"), both[1]];
        assert!(matches!(scope(&rules, &twice), Err(ScopeMissing::Several { .. })));
    }

    #[test]
    fn the_credential_itself_is_never_in_the_scope_and_a_secret_changes_its_hash() {
        let lines = [("authorization", "Bearer sk_live_visible")];
        let plain = scope(&["authorization"], &lines).unwrap();
        assert!(!plain.as_str().contains("visible"));
        let secret = Secret::new(*b"0123456789abcdef").unwrap();
        let rules = ScopeRules::parse(["authorization"]).unwrap();
        assert_ne!(rules.scope_of(&headers(&lines), Some(&secret)).unwrap(), plain);
    }

    #[test]
    fn a_credential_that_does_not_stay_the_same_makes_no_scope() {
        for (value, missing) in [
            ("Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", ScopeMissing::Refreshable),
            ("DPoP eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", ScopeMissing::Changing),
            ("AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=1f", ScopeMissing::Changing),
            ("Token sk_live_1", ScopeMissing::Changing),
            ("sk_live_1", ScopeMissing::Changing),
            ("Bearer", ScopeMissing::Changing),
            ("Basic", ScopeMissing::Changing),
        ] {
            assert_eq!(scope(&["authorization"], &[("authorization", value)]), Err(missing), "{value}");
        }
    }

    #[test]
    fn rules_whose_value_any_client_can_send_must_be_declared_verified() {
        for rules in [&["basic:user"][..], &["header:x-tenant"], &["authorization", "header:x-tenant"]] {
            let refused = ScopeRules::parse(rules.iter().copied()).unwrap_err();
            assert!(matches!(refused, ScopeRuleError::Unverified { .. }), "{refused}");
            assert!(refused.to_string().contains("parse_verified"), "{refused}");
            let verified = ScopeRules::parse_verified(rules.iter().copied()).unwrap();
            assert_eq!(verified.to_string(), rules.join(","));
        }
        let declared_without_need = ScopeRules::parse_verified(["authorization"]);
        assert_eq!(declared_without_need, ScopeRules::parse(["authorization"]));
    }

    /// Stores hold keys under these hashes: other hashes would forget them.
    #[test]
    fn the_common_spelling_of_a_credential_keeps_its_hash() {
        let of = |value: &str| scope(&["authorization"], &[("authorization", value)]).unwrap();
        assert_eq!(
            of("Bearer sk_live_1").as_str(),
            "sha256-49069bf87ab60b329153a730f8224b5b922f36f839c8c97046d55313a3380d2f"
        );
        assert_eq!(
            of("Basic YWxpY2U6c2VjcmV0").as_str(),
            "sha256-9fc2b6074fbd488b35360640e9967629db0b4b416d724a7a0af692ba7c72a714"
        );
    }

    #[test]
    fn a_basic_user_keeps_the_scope_when_the_password_changes() {
        let of = |text: &str| {
            let value = format!("Basic {}", STANDARD.encode(text));
            scope(&["basic:user"], &[("authorization", &value)])
        };
        assert_eq!(of("ada:old"), of("ada:new"));
        assert_ne!(of("ada:x"), of("bob:x"));
        for text in [":x", "ada"] {
            assert_eq!(of(text), Err(ScopeMissing::NotBasic), "{text}");
        }
        assert_eq!(scope(&["basic:user"], &[("authorization", "Bearer x")]), Err(ScopeMissing::NotBasic));
    }

    #[test]
    fn long_values_are_hashed_and_no_client_can_imitate_a_hash() {
        let long = "x".repeat(300);
        let hash = scope(&["header:t"], &[("t", &long)]).unwrap();
        assert!(hash.as_str().len() < 100);
        assert_ne!(scope(&["header:t"], &[("t", hash.as_str())]).unwrap(), hash);
    }

    #[test]
    fn a_header_that_changes_with_every_try_or_names_no_caller_is_no_part_of_a_scope() {
        for (rule, told) in [
            ("header:Authorization", "use \"authorization\""),
            ("header:AUTHORIZATION", "use \"authorization\""),
            ("header:Proxy-Authorization", "with every try"),
            ("header:Idempotency-Key", "its own scope"),
            ("header:Host", "which service"),
            ("header:Onceward-Operation", "removed"),
            ("header:onceward_operation", "removed"),
            ("header:Traceparent", "with every try"),
            ("header:Date", "with every try"),
        ] {
            for parsed in [ScopeRules::parse([rule]), ScopeRules::parse_verified([rule])] {
                let refused = parsed.unwrap_err().to_string();
                let named = refused.to_lowercase().contains(&rule.to_lowercase());
                assert!(refused.contains(told) && named, "{refused}");
            }
        }
    }

    #[test]
    fn a_used_store_may_keep_rules_that_only_earlier_versions_accepted() {
        for rules in [["header:Host", "authorization"], ["fixed:a", "header:host"], ["fixed:a", "fixed:a"]] {
            let used = ScopeRules::parse_used(rules).unwrap();
            assert_eq!(used.outdated(), ScopeRules::parse_verified(rules).err());
            assert!(used.outdated().is_some(), "{used}");
        }
        assert_eq!(ScopeRules::parse_used(["authorization"]).unwrap().outdated(), None);
        for rule in [
            "header:Idempotency-Key",
            "header:Authorization",
            "header:Onceward-Operation",
            "header:Traceparent",
            "jwt:sub",
        ] {
            assert!(ScopeRules::parse_used([rule]).is_err(), "{rule}");
        }
    }

    #[test]
    fn the_same_part_twice_is_refused_in_whatever_case() {
        for rules in [
            ["authorization", "authorization"],
            ["header:X-Tenant", "header:x-tenant"],
            ["fixed:a", "fixed:a"],
        ] {
            let refused = ScopeRules::parse_verified(rules).unwrap_err();
            assert!(matches!(refused, ScopeRuleError::Twice { .. }), "{refused}");
        }
        assert!(ScopeRules::parse_verified(["header:x-tenant", "header:x-user"]).is_ok());
    }

    #[test]
    fn rules_survive_their_text_form_and_nonsense_is_refused_with_advice() {
        for rule in ["header:x-tenant", "authorization", "basic:user", "fixed:demo"] {
            assert_eq!(rule.parse::<ScopeRule>().unwrap().to_string(), rule);
        }
        for rule in [
            "",
            "header:",
            "header:a b",
            "header:Idempotency-Key",
            "fixed:",
            "jwt:sub",
            "auth:tenant",
            "basic:password",
            "cookie:x",
        ] {
            assert!(rule.parse::<ScopeRule>().is_err(), "{rule}");
        }
        assert_eq!(ScopeRules::parse([]), Err(ScopeRuleError::None));
    }
}
