//! The gateway: the layer around a proxy service, and what it takes to run one.

pub mod admin;
pub mod front;
pub mod gateway;
pub mod proxy;
pub mod settings;
pub mod telemetry;
