//! Explains what a server's settings mean for durability.

use std::collections::BTreeMap;

use onceward::store::{Finding, Health};

use crate::connection::{Connection, NodeReply};
use crate::error::{Failure, OpenError};
use crate::options::Options;
use crate::url::{RedisUrl, Topology};

/// Connects and reads every setting that the store depends on. Changes nothing.
pub async fn examine(url: &RedisUrl) -> Result<Vec<Finding>, OpenError> {
    let unavailable =
        |failure: Failure| OpenError::Unavailable { server: url.to_string(), reason: failure.reason() };
    let connection = Connection::connect(url, &Options::default()).await.map_err(unavailable)?;
    look(&connection, url).await.map_err(unavailable)
}

pub(crate) async fn look(connection: &Connection, url: &RedisUrl) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    for NodeReply { node, text } in connection.ask_all(redis::cmd("INFO")).await? {
        let info = fields(&text);
        let at = node.map(|node| format!("{node}: ")).unwrap_or_default();
        let get = |name: &str| info.get(name).copied().unwrap_or("unknown");
        let mut find = |(level, setting, text): Judgement| {
            findings.push(Finding { health: level, subject: setting, text: format!("{at}{text}") });
        };
        find(version(get("redis_version")));
        find(mode(get("redis_mode"), url.topology));
        find(role(get("role")));
        find(policy(get("maxmemory_policy")));
        find(persistence(get("aof_enabled")));
        find(replicas(get("connected_slaves")));
    }
    findings.push(fsync(connection).await);
    Ok(findings)
}

type Judgement = (Health, &'static str, String);

fn fields(info: &str) -> BTreeMap<&str, &str> {
    info.lines().filter_map(|line| line.split_once(':')).collect()
}

fn version(version: &str) -> Judgement {
    let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    match major {
        0..=4 => {
            let text = format!("version {version} cannot run the store's scripts: it needs Redis 5 or later");
            (Health::Problem, "version", text)
        }
        5 | 6 => {
            let text =
                format!("version {version} works and is no longer maintained: upgrade to Redis 7 or later");
            (Health::Warning, "version", text)
        }
        _ => (Health::Good, "version", format!("version {version}")),
    }
}

fn mode(mode: &str, topology: Topology) -> Judgement {
    match (mode, topology) {
        ("cluster", Topology::Single) => {
            let text =
                "this is a node of a cluster, and holds only some of the keys: add ?cluster=true to the URL";
            (Health::Problem, "cluster-enabled", text.to_owned())
        }
        ("cluster", Topology::Cluster) => (Health::Good, "cluster-enabled", "a node of a cluster".to_owned()),
        (_, Topology::Cluster) => {
            let text = "the URL says cluster=true, and this is a single server: remove cluster=true";
            (Health::Problem, "cluster-enabled", text.to_owned())
        }
        (_, Topology::Single) => (Health::Good, "cluster-enabled", "a single server".to_owned()),
    }
}

fn role(role: &str) -> Judgement {
    match role {
        "slave" => {
            let text =
                "this is a replica, which refuses writes and lags behind: give the address of its master";
            (Health::Problem, "replicaof", text.to_owned())
        }
        _ => (Health::Good, "replicaof", "it accepts writes".to_owned()),
    }
}

fn policy(policy: &str) -> Judgement {
    match policy {
        "noeviction" => (Health::Good, "maxmemory-policy", "noeviction: no record is evicted".to_owned()),
        other => {
            let text = format!(
                "maxmemory-policy is {other}: a full Redis would forget operations, and retries would execute again; set `maxmemory-policy noeviction` in redis.conf, or with CONFIG SET"
            );
            (Health::Problem, "maxmemory-policy", text)
        }
    }
}

fn persistence(aof: &str) -> Judgement {
    match aof {
        "1" => (Health::Good, "appendonly", "yes: writes are in a log that a restart reads".to_owned()),
        _ => {
            let text = "appendonly is off: a restart loses everything since the last snapshot, and the store then refuses to serve until the loss is accepted; set `appendonly yes`";
            (Health::Warning, "appendonly", text.to_owned())
        }
    }
}

fn replicas(count: &str) -> Judgement {
    match count {
        "0" | "unknown" => {
            (Health::Good, "replication", "no replicas: nothing can fail over to an older copy".to_owned())
        }
        _ => {
            let text = format!(
                "{count} replicas are connected: replication is asynchronous, so a failover can lose writes that were not replicated yet. The store detects that and stops; it cannot undo it"
            );
            (Health::Warning, "replication", text)
        }
    }
}

/// Hosted servers often refuse to report this setting, so it is read separately.
async fn fsync(connection: &Connection) -> Finding {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("appendfsync");
    let value = match connection.send(&command).await {
        Ok(redis::Value::Array(parts)) => parts.into_iter().nth(1).and_then(crate::reply::text),
        Ok(redis::Value::Map(pairs)) => {
            pairs.into_iter().next().and_then(|(_, value)| crate::reply::text(value))
        }
        Ok(_) | Err(_) => None,
    };
    let (level, text) = match value.as_deref() {
        Some("always") => {
            (Health::Good, "appendfsync is always: with appendonly, what was answered survives a crash".to_owned())
        }
        Some(other) => (
            Health::Warning,
            format!(
                "appendfsync is {other}: a crash of the server can lose {}, and with it operations that were answered; set `appendfsync always` where that matters",
                if other == "everysec" { "the last second" } else { "what the system had not written yet" }
            ),
        ),
        None => (
            Health::Warning,
            "appendfsync cannot be read here: ask the operator of this Redis; unless it is `always`, a crash can lose the last second"
                .to_owned(),
        ),
    };
    Finding { health: level, subject: "appendfsync", text }
}

/// The error for a finding that prevents the start.
pub(crate) fn refusal(server: &str, setting: &'static str, text: String) -> OpenError {
    let (problem, advice) = match text.split_once("; ") {
        Some((problem, advice)) => (problem.to_owned(), advice.to_owned()),
        None => (text, format!("check {setting}")),
    };
    OpenError::Setting { server: server.to_owned(), problem, advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_noeviction_is_a_problem_and_says_what_to_change() {
        assert_eq!(policy("noeviction").0, Health::Good);
        for other in ["allkeys-lru", "volatile-ttl", "unknown"] {
            let (level, setting, text) = policy(other);
            assert_eq!((level, setting), (Health::Problem, "maxmemory-policy"));
            assert!(text.contains("maxmemory-policy noeviction"), "{text}");
        }
    }

    #[test]
    fn a_server_that_would_lose_or_split_records_is_told_from_one_that_only_promises_less() {
        assert_eq!(version("4.0.9").0, Health::Problem);
        assert_eq!(version("6.2.1").0, Health::Warning);
        assert_eq!(version("7.0.15").0, Health::Good);
        assert_eq!(mode("cluster", Topology::Single).0, Health::Problem);
        assert_eq!(mode("standalone", Topology::Cluster).0, Health::Problem);
        assert_eq!(role("slave").0, Health::Problem);
        assert_eq!(persistence("0").0, Health::Warning);
        assert_eq!(replicas("2").0, Health::Warning);
    }
}
