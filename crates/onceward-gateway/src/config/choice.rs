//! Settings that are one word of several. The enums are those that the program works with; here they get their place in the
//! schema.

use std::borrow::Cow;

use onceward::event::Expiry;
use onceward::http::{CloseDelimited, Flavor, InProgress, KeyRule, Mode, SetCookie, StoreDown};
use onceward::key::Syntax;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::names::names_of;
use crate::settings::{Keepalive, LapseRule, LogFormat, Role};

/// One of an enum's words, in the spelling that serde gives it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Choice<T>(pub T);

/// The schema's name and description of an enum. Its words come from serde.
pub(super) trait Described {
    const NAME: &'static str;
    const DESCRIPTION: &'static str;
}

impl<T: Described + for<'de> Deserialize<'de>> JsonSchema for Choice<T> {
    fn schema_name() -> Cow<'static, str> {
        T::NAME.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": T::DESCRIPTION, "enum": names_of::<T>() })
    }
}

macro_rules! described {
    ($($type:ident = $name:literal, $description:literal;)+) => {
        $(impl Described for $type {
            const NAME: &'static str = $name;
            const DESCRIPTION: &'static str = $description;
        })+
    };
}

described! {
    CloseDelimited = "CloseDelimited", "What an answer counts as that has no length and ends where its connection does.";
    Expiry = "Expire", "What becomes of a record past its window.";
    Flavor = "Flavor", "Whose statuses and headers refusals and replays have.";
    InProgress = "InProgress", "What a retry gets while the first request runs.";
    Keepalive = "Keepalive", "Which requests may use a connection to the upstream again.";
    KeyRule = "KeyRule", "Whether a request must bring a key.";
    LapseRule = "OnLapse", "What a lapsed lease means.";
    LogFormat = "LogFormat", "The form of a log.";
    Mode = "Mode", "Whether retries are held back, or only counted.";
    Role = "Role", "What a token allows.";
    SetCookie = "SetCookie", "Whether `Set-Cookie` is stored and replayed.";
    StoreDown = "StoreDown", "What happens to keyed requests while the store is away.";
    Syntax = "Syntax", "Which spellings of a key are accepted.";
}
