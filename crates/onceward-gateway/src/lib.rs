//! The gateway: the layer around a proxy service, and what it takes to run one.

pub mod admin;
pub mod settings;
pub mod telemetry;
