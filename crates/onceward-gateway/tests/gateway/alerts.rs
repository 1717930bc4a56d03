//! The alerts in `deploy/prometheus`, held against what a running gateway exports and what docs/operations.md calls an alarm.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::harness::Gateway;
use crate::ledger::Ledger;

const PAGE: &str = include_str!("../../../../docs/operations.md");
const RULES: &str = include_str!("../../../../deploy/prometheus/onceward.rules.yml");
const PLAYED: &str = include_str!("../../../../deploy/prometheus/onceward.rules.test.yml");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus");

/// The labels that Prometheus itself adds to what it scrapes.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];

/// What one alert has, by the keys of its YAML.
#[derive(Debug)]
struct Alert {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
}

impl Alert {
    fn all() -> Vec<Self> {
        let alerts: Vec<Self> = RULES.split("      - alert: ").skip(1).map(Self::read).collect();
        assert!(alerts.len() >= 10, "{alerts:#?}");
        alerts
    }

    /// Keys at the depth of the rule, of its labels and of its annotations, with the lines that continue them.
    fn read(text: &'static str) -> Self {
        let (name, rest) = text.split_once('\n').unwrap();
        let mut fields: BTreeMap<&str, String> = BTreeMap::new();
        let mut last = "";
        for line in rest.lines().filter(|line| !line.trim().is_empty()) {
            let key = line.trim_start().split(':').next().unwrap();
            let depth = line.len() - line.trim_start().len();
            let is_key = depth < 12 && key.bytes().all(|byte| byte.is_ascii_lowercase());
            if is_key {
                last = key;
            }
            let value = if is_key { &line[depth + key.len() + 1..] } else { line };
            let field = fields.entry(last).or_default();
            field.push_str(value.trim());
            field.push(' ');
        }
        Self { name, fields }
    }

    fn field(&self, key: &str) -> &str {
        self.fields.get(key).unwrap_or_else(|| panic!("{} has no {key}", self.name)).trim()
    }

    /// The metrics in its expression.
    fn metrics(&self) -> BTreeSet<&str> {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = self.field("expr").split(|c| !is_of_name(c));
        let ours = |word: &&str| word.starts_with("api_idempotency_") || word.starts_with("onceward_");
        let metrics: BTreeSet<&str> = words.filter(ours).collect();
        assert!(!metrics.is_empty(), "{} is about no metric", self.name);
        metrics
    }

    /// The labels that it selects by, each with its value.
    fn selected(&self) -> BTreeSet<(&str, &str)> {
        let selectors = self.field("expr").split('{').skip(1);
        let selectors = selectors.map(|text| text.split_once('}').unwrap().0);
        selectors
            .flat_map(|selector| selector.split(','))
            .map(|matcher| {
                let (label, value) = matcher.split_once(['=', '!']).unwrap();
                (label.trim(), value.trim_start_matches(['=', '~']).trim_matches('"'))
            })
            .collect()
    }

    /// The labels that it groups or joins by.
    fn grouped(&self) -> BTreeSet<&str> {
        let lists = ["by (", "on ("].map(|word| self.field("expr").split(word).skip(1));
        lists
            .into_iter()
            .flatten()
            .flat_map(|list| list.split(')').next().unwrap().split(','))
            .map(str::trim)
            .collect()
    }
}

/// The labels of each metric, each with the values that it has.
type Exported = BTreeMap<String, BTreeSet<(String, String)>>;

/// What a gateway exports that has a route with receipts and one without.
async fn exported() -> Exported {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let file =
        "[[routes]]\nmatch = \"POST /orders\"\nkey = \"required\"\nreceipts = { url = { env = \"SHOP\" } }\n";
    std::fs::write(folder.path().join("onceward.toml"), file).unwrap();
    let mut command = Gateway::command(folder.path(), ledger.address);
    command.args(["--config", "onceward.toml"]).env("SHOP", "sqlite:shop.db");
    let gateway = Gateway::spawn(&mut command);
    let mut exported = Exported::new();
    for sample in gateway.metrics().await.keys() {
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let labels = labels.trim_end_matches('}').split("\",").filter_map(|label| label.split_once("=\""));
        let labels = labels.map(|(label, value)| (label.to_owned(), value.trim_end_matches('"').to_owned()));
        exported.entry(name.to_owned()).or_default().extend(labels);
    }
    exported
}

#[tokio::test]
async fn every_metric_and_label_of_the_alerts_is_exported() {
    let exported = exported().await;
    for alert in Alert::all() {
        let mut labels: BTreeSet<&(String, String)> = BTreeSet::new();
        for metric in alert.metrics() {
            let found =
                exported.get(metric).unwrap_or_else(|| panic!("{}: nothing exports {metric}", alert.name));
            labels.extend(found);
        }
        for (label, value) in alert.selected() {
            let found = labels.contains(&(label.to_owned(), value.to_owned()));
            assert!(found, "{}: nothing has {label}=\"{value}\"", alert.name);
        }
        for label in alert.grouped().into_iter().filter(|label| !OF_PROMETHEUS.contains(label)) {
            assert!(labels.iter().any(|(found, _)| found == label), "{}: nothing has {label}", alert.name);
        }
    }
}

#[test]
fn every_metric_that_the_page_calls_an_alarm_has_an_alert() {
    let alerts = Alert::all();
    let alarming: Vec<&str> = PAGE
        .lines()
        .filter(|line| line.contains("**alarm**"))
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert!(alarming.len() >= 9, "{alarming:?}");
    for metric in alarming {
        assert!(alerts.iter().any(|alert| alert.metrics().contains(metric)), "no alert is about {metric}");
    }
}

#[test]
fn every_alert_is_on_the_page_and_says_what_happened_and_what_to_type() {
    let alerts = Alert::all();
    for alert in &alerts {
        let severity = alert.field("severity");
        assert!(["critical", "warning"].contains(&severity), "{}: {severity}", alert.name);
        assert!(alert.field("for").ends_with('m'), "{} has no time", alert.name);
        assert!(alert.field("summary").len() > 20 && alert.field("description").len() > 100, "{alert:?}");
        let says_what_to_type = ["curl -s ", "onceward ", "date -u"];
        let description = alert.field("description");
        assert!(says_what_to_type.iter().any(|words| description.contains(words)), "{description}");
        assert!(PAGE.contains(&format!("| `{}` | {severity} |", alert.name)), "{}: {severity}", alert.name);
    }
    let told = PAGE.lines().filter(|line| line.starts_with("| `Onceward")).count();
    assert_eq!(told, alerts.len(), "the page has another alert");
}

#[test]
fn every_alert_is_played_firing_and_not_firing() {
    for alert in Alert::all() {
        let played = PLAYED.split("- eval_time: ").skip(1);
        let of_alert: Vec<&str> =
            played.filter(|check| check.contains(&format!("alertname: {}\n", alert.name))).collect();
        let (quiet, firing): (Vec<&str>, Vec<&str>) =
            of_alert.into_iter().partition(|check| check.contains("exp_alerts: []"));
        assert!(!quiet.is_empty() && !firing.is_empty(), "{}: {quiet:?} {firing:?}", alert.name);
    }
}

#[test]
fn prometheus_own_tool_accepts_the_alerts_and_they_fire_when_they_should() {
    let Some(promtool) = std::env::var_os("ONCEWARD_TEST_PROMTOOL") else {
        println!("ONCEWARD_TEST_PROMTOOL is not set: nothing was checked. Run `cargo xtask test`.");
        return;
    };
    for words in [["check", "rules", "onceward.rules.yml"], ["test", "rules", "onceward.rules.test.yml"]] {
        let output = Command::new(&promtool).args(words).current_dir(FOLDER).output().unwrap();
        let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(output.status.success() && printed.contains("SUCCESS"), "{words:?}: {printed}");
    }
}
