//! Connections. The connection to a single server is remade only by the monitor, never during a call, so that a call knows
//! whether its command can have been sent. Connections to a cluster belong to the library, which retries on another node by
//! itself. That is safe, because a swap that is sent twice finds its own record; but any failed command may have been
//! carried out.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's enums grow; what is not known here is never an answer"
)]

use std::sync::{Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use crate::error::Failure;
use crate::options::Options;
use crate::script::Script;
use crate::url::{RedisUrl, Topology};

/// How often the library may retry on a cluster: for a slot that moved, for a node that failed, and once more.
const CLUSTER_RETRIES: u32 = 3;

pub(crate) enum Connection {
    SingleServer(Box<SingleServer>),
    Cluster(ClusterConnection),
}

/// One server, and the current connection to it, if there is one.
pub(crate) struct SingleServer {
    client: Client,
    config: AsyncConnectionConfig,
    current: Mutex<CurrentConnection>,
}

#[derive(Default)]
struct CurrentConnection {
    /// Incremented with every connection, so that a late error of an old one does not close the new one.
    number: u64,
    connection: Option<MultiplexedConnection>,
}

/// A node's answer, and its address in a cluster.
pub(crate) struct NodeReply {
    pub node: Option<String>,
    pub text: String,
}

impl Connection {
    pub(crate) async fn connect(url: &RedisUrl, options: &Options) -> Result<Self, Failure> {
        let failed = |error: RedisError| Failure::NotSent(words(&error));
        match url.topology {
            Topology::Single => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(options.connect_within))
                    .set_response_timeout(Some(options.answer_within));
                let client = Client::open(url.info.clone()).map_err(failed)?;
                let single = SingleServer { client, config, current: Mutex::default() };
                single.connect().await?;
                Ok(Self::SingleServer(Box::new(single)))
            }
            Topology::Cluster => {
                let client = ClusterClientBuilder::new([url.info.clone()])
                    .connection_timeout(options.connect_within)
                    .response_timeout(options.answer_within)
                    .retries(CLUSTER_RETRIES)
                    .max_retry_wait(100)
                    .build()
                    .map_err(failed)?;
                Ok(Self::Cluster(client.get_async_connection().await.map_err(failed)?))
            }
        }
    }

    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        match self {
            Self::SingleServer(single) => single.send(command).await,
            Self::Cluster(cluster) => {
                let answer = command.query_async(&mut cluster.clone()).await;
                answer.map_err(|error: RedisError| match error.kind() {
                    ErrorKind::Server(ServerErrorKind::NoScript) => Failure::NoScript,
                    _ => Failure::Lost(words(&error)),
                })
            }
        }
    }

    /// Runs a script by its hash, and sends its source if the server does not know it.
    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[&[u8]],
    ) -> Result<Value, Failure> {
        match self.send(&invocation("EVALSHA", script.hash(), keys, arguments)).await {
            Err(Failure::NoScript) => self.send(&invocation("EVAL", script.body, keys, arguments)).await,
            answer => answer,
        }
    }

    /// Sends a command to every node that holds records.
    pub(crate) async fn ask_all(&self, command: Cmd) -> Result<Vec<NodeReply>, Failure> {
        let cluster = match self {
            Self::SingleServer(single) => {
                let text = plain(single.send(&command).await?).ok_or(Failure::Malformed("no text"))?;
                return Ok(vec![NodeReply { node: None, text }]);
            }
            Self::Cluster(cluster) => cluster,
        };
        let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let answer = cluster.clone().route_command(command, everywhere).await;
        let Value::Map(nodes) = answer.map_err(|error| Failure::Lost(words(&error)))? else {
            return Err(Failure::Malformed("no map of nodes"));
        };
        let replies = nodes.into_iter().map(|(node, text)| {
            plain(text).map(|text| NodeReply { node: plain(node), text }).ok_or(Failure::Malformed("no text"))
        });
        replies.collect()
    }
}

impl SingleServer {
    pub(crate) async fn connect(&self) -> Result<(), Failure> {
        let connection = self.client.get_multiplexed_async_connection_with_config(&self.config).await;
        let connection = connection.map_err(|error| Failure::NotSent(words(&error)))?;
        let mut current = self.current();
        current.number += 1;
        current.connection = Some(connection);
        Ok(())
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.current().connection.is_some()
    }

    async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        let (number, connection) = {
            let current = self.current();
            (current.number, current.connection.clone())
        };
        let Some(mut connection) = connection else {
            return Err(Failure::NotSent("there is no connection; a new one is being made".to_owned()));
        };
        let error: RedisError = match command.query_async(&mut connection).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::NoScript) => Err(Failure::NoScript),
            // The server stays a replica for this connection; a new connection may lead to the new master.
            ErrorKind::Server(ServerErrorKind::ReadOnly) => {
                self.give_up(number);
                Err(Failure::Demoted(words(&error)))
            }
            // The server refused the command.
            ErrorKind::Server(_) | ErrorKind::Extension => Err(Failure::Refused(words(&error))),
            _ => {
                self.give_up(number);
                Err(Failure::Lost(words(&error)))
            }
        }
    }

    /// Drops the connection. The monitor makes another.
    fn give_up(&self, number: u64) {
        let mut current = self.current();
        if current.number == number {
            current.connection = None;
        }
    }

    // A panic while the lock is held leaves a connection or none, and both are valid.
    fn current(&self) -> std::sync::MutexGuard<'_, CurrentConnection> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn invocation(verb: &str, script: &str, keys: &[String], arguments: &[&[u8]]) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(script).arg(keys.len()).arg(keys);
    for argument in arguments {
        command.arg(*argument);
    }
    command
}

fn plain(value: Value) -> Option<String> {
    match value {
        Value::VerbatimString { text, .. } => Some(text),
        other => crate::reply::text(other),
    }
}

/// The text of an error. A server's code and text do not repeat what was sent.
fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("Redis answered {code} {detail}"),
        (Some(code), None) => format!("Redis answered {code}"),
        (None, _) if error.is_timeout() => "Redis did not answer in time".to_owned(),
        (None, _) => error.to_string(),
    }
}
