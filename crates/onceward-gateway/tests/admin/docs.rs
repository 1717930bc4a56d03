//! What `docs/operations.md` says, held against what is there.

use std::collections::BTreeMap;

use super::*;

const PAGE: &str = include_str!("../../../../docs/operations.md");

#[tokio::test]
async fn the_table_of_metrics_and_what_is_exposed_are_the_same() {
    let told: BTreeMap<&str, &str> = PAGE
        .lines()
        .filter_map(|line| {
            let mut cells = line
                .strip_prefix("| `api_idempotency_")?
                .split('|')
                .map(|cell| cell.trim().trim_matches('`'));
            Some((cells.next()?, cells.next()?))
        })
        .collect();
    let text = Bench::new().await.text();
    let exposed: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE api_idempotency_")?.split_once(' '))
        .collect();
    assert_eq!(told, exposed);
    assert_eq!(text.matches("# TYPE ").count(), exposed.len(), "something else is exposed:\n{text}");
}

#[tokio::test]
async fn every_endpoint_of_the_page_is_there() {
    let bench = Bench::new().await;
    let mut found = 0;
    for line in PAGE.lines() {
        let Some(endpoint) = line.strip_prefix("| `").and_then(|line| line.split('`').next()) else {
            continue;
        };
        let Some((method, path)) = endpoint.split_once(" /") else { continue };
        let path = format!("/{}", path.replace("{id}", &id("never").to_string()));
        let path = path.split('?').next().unwrap();
        let request = request(method.parse().unwrap(), path, "127.0.0.1:1")
            .header(AUTHORIZATION, format!("Bearer {OPERATOR}"))
            .body(Body::empty())
            .unwrap();
        let response = bench.send(request).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let body = String::from_utf8_lossy(&body);
        assert!(
            status != StatusCode::METHOD_NOT_ALLOWED && !body.contains("path_not_found"),
            "{endpoint}: {body}"
        );
        found += 1;
    }
    assert_eq!(found, 11);
}

/// Everything that the crates are made of.
fn sources(folder: &std::path::Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_line_of_the_log_that_the_page_lists_is_one_that_is_logged() {
    let mut code = String::new();
    sources(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), &mut code);
    let mut found = 0;
    for line in PAGE.lines() {
        let mut cells = line.split(" | ");
        let Some("| info" | "| warn" | "| error") = cells.next() else { continue };
        let message = cells.next().unwrap();
        assert!(code.contains(&format!("\"{message}\"")), "nothing logs {message:?}");
        found += 1;
    }
    assert!(found >= 20, "{found}");
}
