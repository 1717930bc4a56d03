//! Rows as text, and what they mean.

use onceward::receipts::{AgedRow, Column, Note, ReceiptRow, RowColumns, TableError};
use onceward::{Fence, OperationId};
use tokio_postgres::SimpleQueryRow;

use super::error::unavailable;

/// A row whose columns are in the order of `statements.rs`.
pub(super) fn receipt(row: &SimpleQueryRow) -> Result<ReceiptRow, TableError> {
    let columns = RowColumns {
        fence: required(number(row, 0)?, "fence")?,
        point: text(row, 1)?.map(str::to_owned),
        data: text(row, 2)?.map(str::to_owned),
        entered: text(row, 3)?.map(str::to_owned),
        entered_at: number(row, 4)?,
        dedup_until: number(row, 5)?,
        status: number(row, 6)?,
        headers: match (number::<u64>(row, 7)?, text(row, 8)?) {
            (None, _) => Column::Empty,
            (Some(_), Some(headers)) => Column::Read(headers.to_owned()),
            (Some(bytes), None) => Column::TooLarge { bytes },
        },
        body: match (number::<u64>(row, 9)?, text(row, 10)?) {
            (None, _) => Column::Empty,
            (Some(_), Some(digits)) => Column::Read(bytes(digits)?),
            (Some(bytes), None) => Column::TooLarge { bytes },
        },
    };
    Ok(columns.decode())
}

pub(super) fn note(row: &SimpleQueryRow) -> Result<Note, TableError> {
    let number = required(number(row, 0)?, "fence")?;
    Ok(Note { number, text: text(row, 1)?.unwrap_or_default().to_owned() })
}

pub(super) fn aged(row: &SimpleQueryRow) -> Result<AgedRow, TableError> {
    let operation = text(row, 0)?.and_then(|text| text.parse::<OperationId>().ok());
    let fence = Fence::from_number(required(number(row, 1)?, "fence")?);
    Ok(AgedRow { operation: required(operation, "operation")?, fence })
}

/// The only column of a row.
pub(super) fn count(row: &SimpleQueryRow) -> Result<usize, TableError> {
    required(number(row, 0)?, "count")
}

pub(super) fn is_true(row: &SimpleQueryRow) -> Result<bool, TableError> {
    Ok(text(row, 0)? == Some("t"))
}

fn text(row: &SimpleQueryRow, index: usize) -> Result<Option<&str>, TableError> {
    row.try_get(index).map_err(|_| unreadable("a column is not text in UTF-8"))
}

fn number<N: std::str::FromStr>(row: &SimpleQueryRow, index: usize) -> Result<Option<N>, TableError> {
    text(row, index)?
        .map(|digits| digits.parse().map_err(|_| unreadable("a number is outside of its range")))
        .transpose()
}

fn required<T>(value: Option<T>, column: &str) -> Result<T, TableError> {
    value.ok_or_else(|| unreadable(&format!("its {column} is missing")))
}

fn unreadable(what: &str) -> TableError {
    unavailable(format!(
        "a receipt row cannot be read, because {what}: compare the table with `onceward receipts --print-sql`"
    ))
}

/// Bytes from their hexadecimal digits.
fn bytes(digits: &str) -> Result<Vec<u8>, TableError> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    digits
        .as_bytes()
        .chunks(2)
        .map(pair)
        .collect::<Option<_>>()
        .ok_or_else(|| unreadable("its body is not in hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_from_their_digits_and_from_nothing_else() {
        assert_eq!(bytes("00ff7A").unwrap(), [0, 255, 0x7a]);
        assert!(bytes("").unwrap().is_empty());
        assert!(bytes("0").is_err() && bytes("0g").is_err() && bytes("é0").is_err());
    }
}
