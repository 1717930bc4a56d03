//! The gateway on PostgreSQL, with Redis in front and without, in one run on one machine.

use std::process::Command;

use onceward_testkit::servers::{Postgres, RedisServer};

use super::gateway::load::{LoadResult, Workload, load};
use super::gateway::side_by_side::{Process, Row, gateway, print};
use super::median;
use super::store::Failure;
use crate::shell::{cargo, run as run_command};
use crate::{Done, test};

#[derive(clap::Args)]
pub struct Options {
    /// Seconds that each load lasts.
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// How often everything is measured; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// Loads the gateway, and returns how many statements a request took on average.
struct Counted {
    seen: LoadResult,
    statements: f64,
}

pub fn run(options: &Options) -> Done {
    test::install_missing(&[test::WRK, test::CURL])?;
    test::install_servers()?;
    run_command(&mut cargo(&["build", "--quiet", "--release", "--package", "onceward-gateway"]))?;
    let folder = tempfile::tempdir()?;
    let xtask = std::env::current_exe()?;
    let upstream = Process::start(Command::new(&xtask).args(["bench", "peer", "upstream"]))?;
    let address = upstream.address.to_string();
    let proxy = Process::start(Command::new(&xtask).args(["bench", "peer", "proxy", &address]))?;

    let (postgres, redis) = (Postgres::start(), RedisServer::start(&[]));
    let gateway_on = |store: &str, more: &[&str]| gateway(store, upstream.address, more);
    let batched = gateway_on(&postgres.create_database(), &[])?;
    let single = gateway_on(&with(&postgres.create_database(), "batching=off"), &[])?;
    // Nothing fits into its own memory, so that every replay reads the shared cache, or the database.
    let small = ["--limits-cache-bytes", "0"];
    let cached = gateway_on(&postgres.create_database(), &["--cache", &redis.url(), small[0], small[1]])?;
    let embedded = gateway_on(&format!("sqlite:{}", folder.path().join("embedded.db").display()), &[])?;

    let [mut new_keys, mut unbatched, mut replays, mut shared] = [
        Row::new("new keys, against the proxy", "at least 0.2"),
        Row::new("new keys, against one statement for each", "at least 3"),
        Row::new("replays, against the embedded store", "one read, or none"),
        Row::new("replays from Redis, against the embedded store", "at least 0.8"),
    ];
    let mut statements = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..options.rounds {
        let plain = |process: &Process, workload, part: u32| {
            load(process.address, workload, options.seconds, round * 10 + part, folder.path())
        };
        let counted = |process: &Process, workload, part: u32| -> Result<Counted, Failure> {
            let before = process.counter("api_idempotency_store_statements_total")?;
            let seen = plain(process, workload, part)?;
            let sent = process.counter("api_idempotency_store_statements_total")? - before;
            Ok(Counted { seen, statements: sent / seen.requests })
        };
        new_keys.against.push(plain(&proxy, Workload::NewKeys, 0)?);
        let new = counted(&batched, Workload::NewKeys, 1)?;
        new_keys.seen.push(new.seen);
        unbatched.seen.push(new.seen);
        unbatched.against.push(plain(&single, Workload::NewKeys, 2)?);
        let embedded = plain(&embedded, Workload::Replays, 3)?;
        replays.against.push(embedded);
        shared.against.push(embedded);
        let replayed = counted(&batched, Workload::Replays, 4)?;
        replays.seen.push(replayed.seen);
        let from_redis = counted(&cached, Workload::Replays, 5)?;
        shared.seen.push(from_redis.seen);
        for (all, one) in statements.iter_mut().zip([new, replayed, from_redis]) {
            all.push(one.statements);
        }
        println!("round {} of {} done", round + 1, options.rounds);
    }
    print(&[&new_keys, &unbatched, &replays, &shared], options.seconds, options.rounds);
    let [new, replayed, from_redis] = statements.map(median);
    println!("\nstatements for a request with a new key: {new:.3} (to reach: at most 0.2)");
    println!("statements for a replay: {replayed:.3}, with Redis in front: {from_redis:.3}");
    println!("most memory of the gateway: {:.0} MiB", batched.peak_mib()?);
    Ok(())
}

/// A URL with one more parameter.
fn with(url: &str, parameter: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{parameter}")
}
