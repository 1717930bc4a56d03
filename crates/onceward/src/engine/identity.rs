//! Checks that a store is used under an identity that it knows.
//!
//! Another namespace, scope rule or secret gives every key another id: each stored key would be forgotten, and each
//! retry would execute again. So the verifier of every identity that was ever used lies in the store, in a record of its
//! own, and an engine with an unknown one is refused.

use std::sync::Arc;

use bytes::Bytes;

use super::options::IdentityChange;
use crate::outcome::Reply;
use crate::record::{Record, RecordFormat, State, Subject, Terms};
use crate::store::{Seen, Store, StoreError, Swapped};
use crate::{Fingerprint, Identity, RecordId, Timestamp, entropy::OwnerToken};

/// A namespace's hash and the verifier of its settings.
const ENTRY_BYTES: usize = 32;
/// The name of the entry for the record format. It lies among the identities, because versions that know nothing of formats
/// copy entries that are not theirs and drop everything else.
const FORMAT_NAME: [u8; 16] = *b"onceward.format\0";
/// Far more than the gateways that share a store. The list is one record, so it must be bounded.
const ENTRIES_MAX: usize = 1024;
/// Engines that start at once each add themselves with a swap; a store that conflicts more often is broken.
const CONFLICTS_MAX: u32 = 64;

/// An engine that would forget every key. Exhaustive, because each case needs another action of the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityRefused {
    /// This namespace was used with another scope rule or secret.
    #[error(
        "the store was used for namespace {namespace:?} with another scope or secret: with these, every stored key would be forgotten and retries would execute again; go back to the former settings, or accept the identity change if the stored keys no longer matter"
    )]
    Changed {
        /// The namespace.
        namespace: String,
    },
    /// This namespace is new to a store that is used for others.
    #[error(
        "the store was used for other namespaces, but never for {namespace:?}: if this is a typing error, every stored key would be forgotten and retries would execute again; correct the namespace, or accept the identity change to add it"
    )]
    NewNamespace {
        /// The namespace.
        namespace: String,
    },
    /// There is no room for another identity.
    #[error(
        "the store already holds {ENTRIES_MAX} identities, which is its limit: use another store for namespace {namespace:?}"
    )]
    Full {
        /// The namespace.
        namespace: String,
    },
    /// The store failed, or holds something else there.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Whether a store knows an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recognition {
    /// It was never used.
    New,
    /// It was used under this identity.
    Known,
    /// It was used under other identities only. Under this one, every key that it holds would be forgotten.
    Other,
}

impl Identity {
    /// Whether a store was used under this identity. Changes nothing, unlike [`EngineBuilder::open`](crate::EngineBuilder::open).
    pub async fn recognised_by(&self, store: &dyn Store) -> Result<Recognition, StoreError> {
        let seen = store.load(RecordId::IDENTITY).await?;
        let Some(stamped) = seen.record else { return Ok(Recognition::New) };
        let known = &note(&stamped.record)?.body;
        Ok(match entry_of(known, self) {
            Some(entry) if entry[16..] == self.verifier() => Recognition::Known,
            Some(_) => Recognition::Other,
            None if identities(known).next().is_some() => Recognition::Other,
            None => Recognition::New,
        })
    }
}

/// The entries of a note, without that of the format.
fn identities(known: &[u8]) -> impl Iterator<Item = &[u8]> {
    known.chunks_exact(ENTRY_BYTES).filter(|entry| entry[..16] != FORMAT_NAME)
}

/// The entry of an identity's namespace.
fn entry_of<'a>(known: &'a [u8], identity: &Identity) -> Option<&'a [u8]> {
    let name = *identity.namespace_hash().as_bytes();
    identities(known).find(|entry| entry[..16] == name)
}

/// What a store's note of its identity holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recognised {
    /// Its time.
    pub now: Timestamp,
    /// When it was first used, which distinguishes it from every other store with the same ids.
    pub since: Timestamp,
    /// The format that its records are written in.
    pub format: RecordFormat,
}

/// What an engine asks for when it opens a store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub change: IdentityChange,
    /// The format to write records in. Without one, a new store gets the newest, and another keeps what it has.
    pub format: Option<RecordFormat>,
}

/// Recognises or adds this identity.
pub(super) async fn verify(
    store: &dyn Store,
    identity: &Identity,
    asked: Asked,
) -> Result<Recognised, IdentityRefused> {
    let mut seen = store.load(RecordId::IDENTITY).await?;
    for _ in 0..CONFLICTS_MAX {
        let Seen { now, record } = seen;
        let note = record.as_ref().map(|stamped| note(&stamped.record)).transpose()?;
        let known = note.map_or(&[][..], |note| &note.body);
        let noted = match note {
            Some(note) => noted_format(&note.body)?,
            None => asked.format.unwrap_or(RecordFormat::newest()),
        };
        let format = asked.format.unwrap_or(noted);
        let since = record.as_ref().map_or(now, |stamped| stamped.record.created_at);
        let admitted = admit(known, identity, asked.change)?;
        let former = former(known, identity);
        let changes = admitted.is_some() && asked.change == IdentityChange::Accept;
        if admitted.is_none() && format <= noted {
            return Ok(Recognised { now, since, format });
        }
        let next = with_format(admitted.unwrap_or_else(|| known.to_vec()), format.max(noted));
        let version = record.as_ref().map(|stamped| stamped.version);
        match store.swap(RecordId::IDENTITY, version, remembered(now, since, next)).await {
            Ok(Swapped::Applied { now, .. }) => {
                if let (true, Some(former)) = (changes, former) {
                    warn_of_change(identity, former);
                }
                return Ok(Recognised { now, since, format });
            }
            Ok(Swapped::Conflict(winner)) => seen = winner,
            Err(StoreError::Ambiguous { .. }) => seen = store.load(RecordId::IDENTITY).await?,
            Err(error) => return Err(error.into()),
        }
    }
    Err(StoreError::Unavailable { reason: "the store's identity kept changing while it was read".to_owned() }
        .into())
}

/// What the list must become, if it must change.
fn admit(
    known: &[u8],
    identity: &Identity,
    change: IdentityChange,
) -> Result<Option<Vec<u8>>, IdentityRefused> {
    let (name, verifier) = (*identity.namespace_hash().as_bytes(), identity.verifier());
    let namespace = || identity.namespace().to_owned();
    let position = known.chunks_exact(ENTRY_BYTES).position(|entry| entry[..16] == name);
    let mut next = known.to_vec();
    match (position, change) {
        (Some(index), _) if known[index * ENTRY_BYTES + 16..(index + 1) * ENTRY_BYTES] == verifier => {
            return Ok(None);
        }
        (Some(_), IdentityChange::Refuse) => {
            return Err(IdentityRefused::Changed { namespace: namespace() });
        }
        (Some(index), IdentityChange::Accept) => {
            next[index * ENTRY_BYTES + 16..(index + 1) * ENTRY_BYTES].copy_from_slice(&verifier);
        }
        (None, IdentityChange::Refuse) if !known.is_empty() => {
            return Err(IdentityRefused::NewNamespace { namespace: namespace() });
        }
        (None, _) if known.len() / ENTRY_BYTES >= ENTRIES_MAX => {
            return Err(IdentityRefused::Full { namespace: namespace() });
        }
        (None, _) => next.extend(name.into_iter().chain(verifier)),
    }
    Ok(Some(next))
}

/// What a store was used with before. It keeps hashes, so what it was can only be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Former {
    /// Other namespaces only.
    OtherNamespaces,
    /// This namespace and scope, without a secret.
    NoSecret,
    /// This namespace, with another scope, another secret, or both.
    OtherScopeOrSecret,
}

/// Nothing where the store is new.
fn former(known: &[u8], identity: &Identity) -> Option<Former> {
    identities(known).next()?;
    Some(match entry_of(known, identity) {
        None => Former::OtherNamespaces,
        Some(entry) if entry[16..] == identity.without_secret().verifier() => Former::NoSecret,
        Some(_) => Former::OtherScopeOrSecret,
    })
}

/// Warns of the change, for an operator who left the switch on by mistake. The secret is never logged.
fn warn_of_change(identity: &Identity, former: Former) {
    let from = match former {
        Former::OtherNamespaces => "other namespaces only",
        Former::NoSecret => "this namespace and this scope without a secret",
        Former::OtherScopeOrSecret => {
            "this namespace with another scope, another secret or both (the store keeps only a hash of them)"
        }
    };
    tracing::warn!(
        from,
        namespace = identity.namespace(),
        scope = identity.scope_rule(),
        secret = if identity.has_secret() { "given" } else { "none" },
        "the identity of the store was changed, as --accept-identity-change (in Rust: IdentityChange::Accept) allows: keys that were claimed under the former one are not found under this one, and their retries execute again"
    );
}

/// The store's note: identities and the record format, an entry each.
fn note(record: &Record) -> Result<&Reply, StoreError> {
    match &record.state {
        State::Completed { reply, .. } => Ok(reply),
        State::InProgress { .. }
        | State::FailedRetryable { .. }
        | State::Unknown { .. }
        | State::Expired { .. } => Err(StoreError::Refused {
            reason: format!(
                "its note of the identity is {}, which Onceward never writes",
                record.state.name()
            ),
        }),
    }
}

/// The newest format that records of this store are written in. Versions that knew one format noted none.
fn noted_format(entries: &[u8]) -> Result<RecordFormat, StoreError> {
    let Some(entry) = entries.chunks_exact(ENTRY_BYTES).find(|entry| entry[..16] == FORMAT_NAME) else {
        return Ok(RecordFormat::One);
    };
    RecordFormat::from_number(entry[16]).ok_or_else(|| StoreError::Refused {
        reason: format!(
            "its records are written in format {}, which this version cannot read: run the newer version",
            entry[16]
        ),
    })
}

/// The entries with that of the format.
fn with_format(mut entries: Vec<u8>, format: RecordFormat) -> Vec<u8> {
    let mut entry = [0; ENTRY_BYTES];
    entry[..16].copy_from_slice(&FORMAT_NAME);
    entry[16] = format.number();
    match entries.chunks_exact_mut(ENTRY_BYTES).find(|found| found[..16] == FORMAT_NAME) {
        Some(found) => found.copy_from_slice(&entry),
        None => entries.extend(entry),
    }
    entries
}

/// The note, written as a record that never expires, so that stores need no fifth method for it. It stays in format 1, so
/// that a version which reads no other still starts, and fails closed for single records only.
fn remembered(now: Timestamp, since: Timestamp, entries: Vec<u8>) -> Record {
    let subject = Subject { route: "onceward.identity".to_owned(), ..Subject::default() };
    let fingerprint = Fingerprint::of_bytes(b"onceward.identity");
    let owner = OwnerToken::named("onceward.identity");
    let reply = Arc::new(Reply::new(Bytes::from(entries)));
    let settled = State::Completed { reply, settled_at: now, expires_at: Timestamp::NEVER };
    Record {
        format: RecordFormat::One,
        created_at: since,
        state: settled,
        ..Record::new(subject, fingerprint, Terms::default(), owner, now)
    }
}
