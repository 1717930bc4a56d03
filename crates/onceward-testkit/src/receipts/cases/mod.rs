//! The cases of the suite.

mod handlers;
mod upkeep;
mod voids;

pub use handlers::*;
pub use upkeep::*;
pub use voids::*;
