//! Measurements, each beside the limit that it is judged by.

pub mod store;
