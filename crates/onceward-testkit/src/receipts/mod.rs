//! Receipt tables: a suite that every driver passes, the handlers it plays, and a table in memory.

mod handler;
mod memory;
mod memory_handler;

pub use handler::{Answer, Handler, HandlerError, HandlerFuture, Step};
pub use memory::MemoryReceipts;
pub use memory_handler::MemoryHandler;
