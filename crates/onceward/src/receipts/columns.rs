//! A row's columns, as any driver reads them, and what they mean.

use bytes::Bytes;

use super::{ReceiptEntered, ReceiptPoint, ReceiptRow};
use crate::outcome::Reply;
use crate::{Fence, Timestamp};

/// A column that is read only up to a size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column<T> {
    /// There is nothing in it.
    Empty,
    /// What is in it.
    Read(T),
    /// It was left in the database.
    TooLarge {
        /// Its size.
        bytes: u64,
    },
}

/// The columns of a receipt row, for drivers. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowColumns {
    /// The fence.
    pub fence: i64,
    /// The last phase that is done.
    pub point: Option<String>,
    /// Its data.
    pub data: Option<String>,
    /// An outside call that was begun.
    pub entered: Option<String>,
    /// When it was begun.
    pub entered_at: Option<i64>,
    /// Until when its receiver deduplicates it.
    pub dedup_until: Option<i64>,
    /// The answer's status.
    pub status: Option<i64>,
    /// The answer's headers: a JSON array of pairs.
    pub headers: Column<String>,
    /// The answer's body.
    pub body: Column<Vec<u8>>,
}

/// A larger body is left in the database. No route keeps an answer of that size.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// Larger headers are left in the database. No server accepts a head of that size.
pub const HEADERS_BYTES_MAX: usize = 1 << 20;

impl RowColumns {
    /// The row that these columns are.
    pub fn decode(self) -> ReceiptRow {
        let Self { fence, point, data, entered, entered_at, dedup_until, status, headers, body } = self;
        ReceiptRow {
            fence: Fence::from_number(u64::try_from(fence).unwrap_or(0)),
            point: point.map(|name| ReceiptPoint { name, data }),
            entered: entered.map(|point| ReceiptEntered {
                point,
                at: time(entered_at.unwrap_or(0)),
                dedup_until: dedup_until.map(time),
            }),
            reply: status.map(|status| reply(status, headers, body)),
        }
    }
}

fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn reply(status: i64, headers: Column<String>, body: Column<Vec<u8>>) -> Result<Reply, String> {
    let status = u16::try_from(status)
        .ok()
        .filter(|status| (200..=599).contains(status))
        .ok_or_else(|| format!("the receipt row has the status {status}, and an answer's is 200 to 599"))?;
    let headers = match headers {
        Column::Empty => Vec::new(),
        Column::Read(text) => read_headers(&text)?,
        Column::TooLarge { bytes } => return Err(too_large("headers", bytes, HEADERS_BYTES_MAX)),
    };
    let body = match body {
        Column::Empty => Bytes::new(),
        Column::Read(body) => Bytes::from(body),
        Column::TooLarge { bytes } => return Err(too_large("a body", bytes, BODY_BYTES_MAX)),
    };
    Ok(Reply { status, headers, body, version: 1 })
}

fn too_large(what: &str, bytes: u64, most: usize) -> String {
    format!("the receipt row has {what} of {bytes} bytes, and at most {most} are read")
}

/// Reads a JSON array of pairs of strings. Names become lower case, as everywhere in replies.
pub fn read_headers(text: &str) -> Result<Vec<(String, Bytes)>, String> {
    // The library's error could repeat a value.
    let pairs: Vec<(String, String)> = serde_json::from_str(text).map_err(|_| {
        "the receipt row's headers are not a JSON array of pairs of strings, such as [[\"content-type\",\"application/json\"]]"
            .to_owned()
    })?;
    pairs.into_iter().map(header).collect()
}

fn header((mut name, value): (String, String)) -> Result<(String, Bytes), String> {
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!(
            "the receipt row has a header name of {} bytes that HTTP does not allow",
            name.len()
        ));
    }
    name.make_ascii_lowercase();
    if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        return Err(format!("the receipt row's header {name} has a control character in its value"));
    }
    Ok((name, Bytes::from(value)))
}

/// A character of a header's name in RFC 9110.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(status: i64, headers: Column<String>, body: Column<Vec<u8>>) -> Result<Reply, String> {
        let columns = RowColumns {
            fence: 7,
            point: None,
            data: None,
            entered: None,
            entered_at: None,
            dedup_until: None,
            status: Some(status),
            headers,
            body,
        };
        columns.decode().reply.unwrap()
    }

    #[test]
    fn an_answer_is_read_with_its_names_in_lower_case() {
        let headers = Column::Read(r#"[["Content-Type","text/plain"],["x-a","é\t"]]"#.to_owned());
        let reply = completed(201, headers, Column::Read(b"paid".to_vec())).unwrap();
        assert_eq!(reply.headers[0], ("content-type".to_owned(), Bytes::from("text/plain")));
        assert_eq!(reply.headers[1].1, Bytes::from("é\t"));
        assert_eq!((reply.status, reply.body, reply.version), (201, Bytes::from("paid"), 1));
        let bare = completed(204, Column::Empty, Column::Empty).unwrap();
        assert_eq!((bare.headers.len(), bare.body.len()), (0, 0));
    }

    #[test]
    fn what_cannot_be_an_answer_says_why_and_shows_no_value() {
        let headers = |text: &str| completed(200, Column::Read(text.to_owned()), Column::Empty);
        for (refused, why) in [
            (completed(199, Column::Empty, Column::Empty), "status 199"),
            (completed(600, Column::Empty, Column::Empty), "status 600"),
            (completed(-1, Column::Empty, Column::Empty), "status -1"),
            (headers("{}"), "array of pairs"),
            (headers(r#"[["a"]]"#), "array of pairs"),
            (headers(r#"[["a","secret",1]]"#), "array of pairs"),
            (headers(r#"[["","secret"]]"#), "name of 0 bytes"),
            (headers(r#"[[":status","secret"]]"#), "does not allow"),
            (headers(r#"[["a b","secret"]]"#), "does not allow"),
            (headers(r#"[["a","secret\r\nb: c"]]"#), "control character"),
            (completed(200, Column::TooLarge { bytes: 1 << 30 }, Column::Empty), "1073741824 bytes"),
            (completed(200, Column::Empty, Column::TooLarge { bytes: 1 << 30 }), "1073741824 bytes"),
        ] {
            let said = refused.unwrap_err();
            assert!(said.contains(why) && !said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn numbers_that_no_statement_writes_do_not_wrap() {
        let columns = RowColumns {
            fence: -1,
            point: Some("a".to_owned()),
            data: Some("{}".to_owned()),
            entered: Some("b".to_owned()),
            entered_at: Some(-5),
            dedup_until: Some(i64::MAX),
            status: None,
            headers: Column::Empty,
            body: Column::Empty,
        };
        let row = columns.decode();
        assert_eq!(row.fence, Fence::from_number(0));
        let entered = row.entered.unwrap();
        assert_eq!((entered.at.as_micros(), entered.dedup_until), (0, Some(Timestamp::NEVER)));
        assert!(row.reply.is_none());
    }
}
