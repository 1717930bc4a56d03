//! The configurations that documents show.

use std::net::SocketAddr;

use onceward::event::Expiry;
use onceward_gateway::config::Sources;

use crate::Given;

/// The design's own example, without the parts of later releases.
const DESIGN: &str = r#"
listen    = "127.0.0.1:8420"
upstream  = "http://127.0.0.1:3000"
store     = "sqlite:onceward.db"
scope     = ["authorization"]
namespace = "default"
secret    = { env = "ONCEWARD_SECRET" }

[admin]
listen = "127.0.0.1:8421"

[defaults]
methods = ["POST", "PATCH"]
key = "optional"
syntax = "lenient"
min_key_length = 1
flavor = "ietf"
in_progress = "conflict"
wait = "10s"
timeout = "30s"
respond_within = "30s"
lease = "60s"
on_lapse = "unknown"
retention = "24h"
grace = "1h"
expire = "delete"
store_down = "reject"
retryable = [401, 425, 429]
unknown = [502, 503, 504]
max_request_body = "1MiB"
max_response_body = "1MiB"
fingerprint = { headers = [], ignore = [] }
response_version = 1
mode = "enforce"

[[routes]]
match = "POST /payments"
key = "required"
retention = "7d"
"#;

#[test]
fn the_example_of_the_design_loads_and_says_what_the_defaults_say() {
    let variables: &[(&str, &str)] = &[("ONCEWARD_SECRET", "0123456789abcdef0123456789abcdef")];
    let written = Given { file: Some(DESIGN), variables, flags: &[] }.load().unwrap().settings;
    let short = "scope = [\"authorization\"]\nsecret = { env = \"ONCEWARD_SECRET\" }\n[[routes]]\n\
                 match = \"POST /payments\"\nkey = \"required\"\nretention = \"7d\"\n";
    let short = Given { file: Some(short), variables, flags: &[] }.load().unwrap().settings;
    assert_eq!(format!("{written:?}"), format!("{short:?}"));
    assert_eq!(written.listen, "127.0.0.1:8420".parse::<SocketAddr>().unwrap());
    assert_eq!(written.expiry, Expiry::Delete);
}

#[test]
fn the_example_file_loads() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/onceward.example.toml");
    Sources::new([]).with_file(path).load().unwrap();
}

/// Whoever takes the comment sign away must not meet a mistake of ours.
#[test]
fn every_key_that_the_example_comments_out_can_be_switched_on() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/onceward.example.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let switched_on: Vec<&str> = text
        .lines()
        .map(|line| match line.strip_prefix("#") {
            Some(rest) if !rest.starts_with(' ') => rest,
            _ => line,
        })
        .collect();
    let variables: &[(&str, &str)] = &[
        ("ONCEWARD_SECRET", "0123456789abcdef"),
        ("ADA_TOKEN", "0123456789abcdef0123456789abcdef"),
        ("SHOP_DATABASE", "sqlite:shop.db"),
    ];
    let given = Given { file: Some(&switched_on.join("\n")), variables, flags: &[] }.load();
    assert!(given.is_ok(), "{}", given.unwrap_err());
}
