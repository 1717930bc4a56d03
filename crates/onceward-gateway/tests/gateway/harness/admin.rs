//! The admin listener: what an operator sees and changes.

use std::collections::HashMap;
use std::path::Path;

use onceward_testkit::wait::{self, seen};

use super::{Client, Gateway, Request, Response};

impl Gateway {
    /// Sends one request to the admin listener, with `Host: localhost` unless the test chooses another.
    pub async fn ask_admin(&self, request: Request<'_>) -> Response {
        let mut client = Client::connect(self.admin).await;
        let has_host = request.headers.iter().any(|(name, _)| *name == "host");
        client.send(if has_host { request } else { request.header("host", "localhost") }).await
    }

    /// Sends a change, with the token beside the store.
    pub async fn change(&self, folder: &Path, target: &str, body: &serde_json::Value) -> Response {
        let token = std::fs::read_to_string(folder.join("onceward.db.token")).unwrap();
        let (authorization, body) = (format!("Bearer {}", token.trim()), body.to_string());
        let request = Request::new("POST", target).header("authorization", &authorization).body(&body);
        self.ask_admin(request).await
    }

    /// Sends an operator's verdict on an unknown outcome.
    pub async fn resolve(&self, folder: &Path, operation: &str, verdict: &serde_json::Value) -> Response {
        self.change(folder, &format!("/v1/operations/{operation}/resolve"), verdict).await
    }

    /// The state of an operation.
    pub async fn state(&self, operation: &str) -> String {
        let response = self.ask_admin(Request::new("GET", &format!("/v1/operations/{operation}"))).await;
        response.json()["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns once an operation is in a state.
    pub async fn until_state(&self, operation: &str, state: &str) {
        let awaited = format!("operation {operation} is {state}");
        wait::until(&awaited, async || seen(self.state(operation).await, |found| found == state)).await;
    }

    /// The samples of `/metrics`, by name and labels as printed.
    pub async fn metrics(&self) -> HashMap<String, f64> {
        let response = self.ask_admin(Request::new("GET", "/metrics")).await;
        assert_eq!(response.status, 200, "{response:?}");
        response
            .text()
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .collect()
    }

    /// The sum of a metric's samples, which must be there.
    pub async fn metric(&self, name: &str) -> f64 {
        let samples = self.metrics().await;
        let found = samples_of(&samples, name);
        assert!(!found.is_empty(), "there is no {name} among {:?}", samples.keys());
        found.into_iter().sum()
    }

    /// The same, or zero where nothing has been counted yet.
    pub async fn metric_or_zero(&self, name: &str) -> f64 {
        samples_of(&self.metrics().await, name).into_iter().sum()
    }

    /// Returns once a metric has risen to a value.
    pub async fn until_metric(&self, name: &str, value: f64) {
        let awaited = format!("{name} is at least {value}");
        wait::until(&awaited, async || seen(self.metric_or_zero(name).await, |found| *found >= value)).await;
    }
}

/// The samples of one metric, with any labels.
fn samples_of(samples: &HashMap<String, f64>, name: &str) -> Vec<f64> {
    let is_named = |sample: &str| sample.split('{').next() == Some(name);
    samples.iter().filter(|(sample, _)| is_named(sample)).map(|(_, value)| *value).collect()
}
