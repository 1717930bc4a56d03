//! Shows what a gateway does, with an API of its own.

use std::error::Error;

/// Runs until it is told to stop.
pub async fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    Err("the demo is not in this build".into())
}
