//! How the gateway tells what it does: metrics, logs and traces. None of them ever tells a key, a scope or a body.

pub mod access;
mod json;
pub mod logs;
pub mod metrics;
mod otlp;
pub mod traces;
