//! The gateway: the layer around a proxy service, and what it takes to run one.

pub mod cli;
pub mod config;
pub mod demo;
pub mod serve;
pub mod settings;
