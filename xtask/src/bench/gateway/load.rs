//! Load, from `wrk`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::bench::store::Failure;

/// Which requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Without a key.
    Unkeyed,
    /// Each with a key of its own.
    NewKeys,
    /// With keys that were used before.
    Replays,
}

/// How many keys are replayed. All of them fit into the cache many times over.
const REPLAYED_KEYS: u32 = 1_000;

/// What `wrk` measured.
#[derive(Debug, Clone, Copy)]
pub struct LoadResult {
    pub requests: f64,
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// Connections at once.
pub const CONNECTIONS: u32 = 64;

/// Sends requests for a while. `run` keeps the keys of two loads apart.
pub fn load(
    to: SocketAddr,
    workload: Workload,
    seconds: u32,
    run: u32,
    folder: &Path,
) -> Result<LoadResult, Failure> {
    let script = folder.join(format!("{workload:?}.lua"));
    std::fs::write(&script, lua(workload, run)?)?;
    let output = Command::new("wrk")
        .args(["--threads", "1", "--latency", "--connections", &CONNECTIONS.to_string()])
        .args(["--duration", &format!("{seconds}s"), "--script"])
        .arg(&script)
        .arg(format!("http://{to}/charges"))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(format!("wrk failed, or not every request was answered:\n{text}").into());
    }
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
        line.ok_or_else(|| format!("wrk did not print {name:?}:\n{text}"))
    };
    let requests =
        text.lines().find_map(|line| line.trim().split_once(" requests in ")).map(|(count, _)| count);
    Ok(LoadResult {
        requests: requests.ok_or("wrk did not print how many requests there were")?.parse()?,
        per_second: value("Requests/sec:")?.parse()?,
        p50_ms: milliseconds(value("50%")?)?,
        p99_ms: milliseconds(value("99%")?)?,
    })
}

/// Every workload builds its requests the same way, so that `wrk` itself costs the same in each.
fn lua(workload: Workload, run: u32) -> Result<String, std::fmt::Error> {
    let body = format!("{{\"amount\":1299,\"currency\":\"eur\",\"note\":\"{}\"}}", "n".repeat(255));
    let mut script = String::new();
    writeln!(script, "local body = '{body}'")?;
    writeln!(
        script,
        "local head = 'POST /charges HTTP/1.1\\r\\nHost: bench\\r\\nContent-Type: application/json\\r\\n'"
    )?;
    writeln!(script, "local tail = 'Content-Length: ' .. #body .. '\\r\\n\\r\\n' .. body")?;
    writeln!(script, "local n = 0")?;
    writeln!(script, "request = function() n = n + 1")?;
    let header = match workload {
        Workload::Unkeyed => "'X-Request: bench-".to_owned() + &run.to_string() + "-' .. n",
        Workload::NewKeys => format!("'Idempotency-Key: bench-{run}-' .. n"),
        Workload::Replays => format!("'Idempotency-Key: replay-' .. (n % {REPLAYED_KEYS})"),
    };
    writeln!(script, "  return head .. {header} .. '\\r\\n' .. tail end")?;
    Ok(script)
}

/// `wrk` prints `870.00us`, `1.23ms` or `1.02s`.
fn milliseconds(text: &str) -> Result<f64, Failure> {
    let (number, factor) = if let Some(number) = text.strip_suffix("us") {
        (number, 0.001)
    } else if let Some(number) = text.strip_suffix("ms") {
        (number, 1.0)
    } else if let Some(number) = text.strip_suffix('s') {
        (number, 1000.0)
    } else {
        return Err(format!("wrk printed a time that cannot be read: {text:?}").into());
    };
    Ok(number.parse::<f64>()? * factor)
}
