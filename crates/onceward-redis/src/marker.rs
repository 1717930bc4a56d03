//! Creates and reads the markers, and accepts a loss.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's enums grow; what is not known here is never an answer"
)]

use futures_util::future::try_join_all;
use onceward::plumbing::random_bytes;
use redis::Value;

use crate::connection::Connection;
use crate::error::{Failure, OpenError};
use crate::keys::{BUCKETS, Keys, List, buckets};
use crate::loss_detector::{ACCEPTED, FIRST, MAKING, Marker, ROLLED_BACK};
use crate::options::FirstUse;
use crate::script::MARK;

/// Reads the marker of every bucket.
pub(crate) async fn read(connection: &Connection, keys: &Keys) -> Result<Vec<Option<Marker>>, Failure> {
    try_join_all(buckets().map(|bucket| async move {
        let mut command = redis::cmd("HMGET");
        command.arg(keys.marker(bucket)).arg("generation").arg("last");
        match connection.send(&command).await? {
            Value::Array(parts) => marker(parts),
            _ => Err(Failure::Malformed("no marker")),
        }
    }))
    .await
}

fn marker(parts: Vec<Value>) -> Result<Option<Marker>, Failure> {
    let mut parts = parts.into_iter();
    match (parts.next(), parts.next()) {
        (Some(Value::Nil), Some(Value::Nil)) => Ok(None),
        (Some(generation), Some(last)) => {
            let generation = crate::reply::text(generation);
            let last = crate::reply::text(last).and_then(|text| text.parse().ok());
            match (generation, last) {
                (Some(generation), Some(last)) => Ok(Some(Marker { generation, last })),
                (None, _) | (_, None) => Err(Failure::Malformed("half a marker")),
            }
        }
        (None, _) | (_, None) => Err(Failure::Malformed("half a marker")),
    }
}

/// When a marker may be written.
#[derive(Clone, Copy)]
enum When<'a> {
    Absent,
    Equal(&'a str),
    Always,
}

/// Writes one marker, and returns the generation that it has afterwards.
async fn mark(
    connection: &Connection,
    keys: &Keys,
    bucket: u8,
    when: When<'_>,
    generation: &str,
) -> Result<String, Failure> {
    let (when, expected) = match when {
        When::Absent => ("absent", ""),
        When::Equal(expected) => ("equal", expected),
        When::Always => ("always", ""),
    };
    let arguments = [when.as_bytes(), generation.as_bytes(), expected.as_bytes()];
    let answer = connection.run(&MARK, &[keys.marker(bucket)], &arguments).await?;
    crate::reply::text(answer).ok_or(Failure::Malformed("no generation"))
}

/// Writes the markers of all buckets but the first. Until they are written, the generation of the
/// first one has the prefix [`MAKING`].
async fn mark_others(
    connection: &Connection,
    keys: &Keys,
    when: When<'_>,
    generation: &str,
) -> Result<(), Failure> {
    try_join_all(buckets().skip(1).map(|bucket| mark(connection, keys, bucket, when, generation))).await?;
    Ok(())
}

fn new_generation(kind: &str) -> Result<String, OpenError> {
    Ok(format!("{kind}{:032x}", u128::from_be_bytes(random_bytes()?)))
}

/// Reads the store's generation, and creates the markers on an empty server.
pub(crate) async fn open(
    connection: &Connection,
    keys: &Keys,
    first_use: FirstUse,
    server: &str,
) -> Result<(String, Vec<Marker>), OpenError> {
    let unavailable =
        |failure: Failure| OpenError::Unavailable { server: server.to_owned(), reason: failure.reason() };
    let lost = |what: &str| OpenError::Lost { server: server.to_owned(), what: what.to_owned() };
    let markers = read(connection, keys).await.map_err(unavailable)?;
    let making =
        markers[0].as_ref().and_then(|first| first.generation.strip_prefix(MAKING)).map(str::to_owned);
    let generation = match making {
        Some(generation) if generation.starts_with(FIRST) => generation,
        Some(_) => return Err(lost("accepting a loss was begun and not finished")),
        None if markers.iter().all(Option::is_none) => {
            if has_records(connection, keys).await.map_err(unavailable)? {
                return Err(lost("there are records, and their markers are missing"));
            }
            if first_use == FirstUse::Refuse {
                return Err(OpenError::Empty { server: server.to_owned() });
            }
            new_generation(FIRST)?
        }
        None => return whole(markers).map_err(|what| lost(&what)),
    };
    // Several gateways may start at once: the first one to mark bucket 0 chooses the name, and all of them finish the rest.
    let unfinished = format!("{MAKING}{generation}");
    let standing = mark(connection, keys, 0, When::Absent, &unfinished).await.map_err(unavailable)?;
    let generation = standing.strip_prefix(MAKING).unwrap_or(&standing);
    mark_others(connection, keys, When::Absent, generation).await.map_err(unavailable)?;
    mark(connection, keys, 0, When::Equal(&format!("{MAKING}{generation}")), generation)
        .await
        .map_err(unavailable)?;
    whole(read(connection, keys).await.map_err(unavailable)?).map_err(|what| lost(&what))
}

/// The generation, if all markers exist and agree.
fn whole(markers: Vec<Option<Marker>>) -> Result<(String, Vec<Marker>), String> {
    let there: Vec<Marker> = markers.into_iter().flatten().collect();
    let generation = there.first().map(|marker| marker.generation.clone()).unwrap_or_default();
    if there.len() < BUCKETS {
        return Err(format!("{} of {BUCKETS} markers are missing", BUCKETS - there.len()));
    }
    if generation.starts_with(ROLLED_BACK) {
        return Err("a gateway has detected that writes are missing".to_owned());
    }
    if there.iter().any(|marker| marker.generation != generation) {
        return Err("its markers belong to several generations".to_owned());
    }
    Ok((generation, there))
}

async fn has_records(connection: &Connection, keys: &Keys) -> Result<bool, Failure> {
    let found = try_join_all(buckets().map(|bucket| async move {
        let mut command = redis::cmd("EXISTS");
        List::ALL.iter().for_each(|list| {
            command.arg(keys.list(bucket, *list));
        });
        connection.send(&command).await
    }));
    Ok(found.await?.into_iter().any(|count| count != Value::Int(0)))
}

/// Gives every bucket a new generation, which running gateways accept.
pub(crate) async fn accept(connection: &Connection, keys: &Keys, server: &str) -> Result<(), OpenError> {
    let unavailable =
        |failure: Failure| OpenError::Unavailable { server: server.to_owned(), reason: failure.reason() };
    let generation = new_generation(ACCEPTED)?;
    let unfinished = format!("{MAKING}{generation}");
    mark(connection, keys, 0, When::Always, &unfinished).await.map_err(unavailable)?;
    mark_others(connection, keys, When::Always, &generation).await.map_err(unavailable)?;
    mark(connection, keys, 0, When::Equal(&unfinished), &generation).await.map_err(unavailable)?;
    Ok(())
}

/// Marks every bucket as rolled back, so that other gateways stop too. A bucket with another generation is left as it is:
/// its gateways know already.
pub(crate) async fn spread(connection: &Connection, keys: &Keys, generation: &str) -> Result<(), Failure> {
    let gone = format!("{ROLLED_BACK}{generation}");
    try_join_all(buckets().map(|bucket| mark(connection, keys, bucket, When::Equal(generation), &gone)))
        .await?;
    Ok(())
}
