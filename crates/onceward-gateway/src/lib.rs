//! The gateway: the layer around a proxy service, and what it takes to run one.

pub mod admin;
mod check;
pub mod cli;
pub mod client_address;
pub mod config;
pub mod demo;
pub mod front;
pub mod gateway;
pub mod http_client;
pub mod listener;
pub mod proxy;
pub mod running;
pub mod serve;
pub mod settings;
pub mod stores;
pub mod telemetry;
pub mod tls_roots;

/// The error that ends a command, as a sentence.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
