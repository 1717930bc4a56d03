//! Receipt rows in a user's database: the suite of every receipt table, the SQL that handlers run, and files that are not as they
//! should be.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

mod check;
mod faults;
mod handler;
mod sql;
mod suite;
