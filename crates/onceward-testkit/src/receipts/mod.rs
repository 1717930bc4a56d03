//! Receipt tables: a suite that every driver passes, the handlers that it plays, and a table in memory.

pub mod cases;
mod handler;
mod memory;
mod memory_handler;
mod suite;

pub use handler::{Answer, Handler, HandlerError, HandlerFuture, Step};
pub use memory::MemoryReceipts;
pub use memory_handler::MemoryHandler;
pub use suite::{Bench, Specimen, run};
