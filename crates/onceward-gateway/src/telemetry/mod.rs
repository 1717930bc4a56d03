//! Metrics, logs and traces. None of them ever has a key, a scope or a body in it.

pub mod access;
mod json_lines;
pub mod logs;
pub mod metrics;
mod otlp;
pub mod traces;
