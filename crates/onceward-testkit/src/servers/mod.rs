//! Real servers, started for a test and ended with it.

pub mod redis;
