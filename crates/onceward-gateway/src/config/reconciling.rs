//! What finds the unknown outcomes of each route out, and when they are dead letters.

use std::collections::BTreeMap;

use onceward::receipts::TableName;
use onceward::reconcile::Reconciling;
use onceward::record::RecordFormat;

use super::document::Document;
use super::rules::{ReceiptTable, Reconcile, Route};
use super::tree::Path;
use super::validate::Findings;
use crate::settings::{ReceiptRoute, ReceiptsUrl};

/// When the unknown outcomes of each route are dead letters, if nothing can find them out.
pub(super) fn times(document: &Document) -> Reconciling {
    let by_route = document.routes.iter().filter_map(|route| {
        let time = route.dead_letter_after?.0;
        Some((route.pattern.clone(), time))
    });
    Reconciling::default()
        .give_up_after(document.defaults.dead_letter_after.0)
        .give_up_after_by_route(by_route.collect())
}

/// The receipt table of each route that has one.
pub(super) fn receipts(
    document: &Document,
    variables: &BTreeMap<String, String>,
    findings: &mut Findings<'_>,
) -> Vec<ReceiptRoute> {
    let mut routes = Vec::new();
    for (index, route) in document.routes.iter().enumerate() {
        let path = Path::of("routes").at(index);
        terms(route, &path, findings);
        let Some(table) = &route.receipts else { continue };
        format(document, &path.key("receipts"), findings);
        let path = path.key("receipts");
        let url = url(table, &path.key("url"), variables, findings);
        let name = name(table, &path.key("table"), findings);
        if let (Some(url), Some(table)) = (url, name) {
            let terms = route.reconcile.clone().unwrap_or_default().terms();
            routes.push(ReceiptRoute { route: route.pattern.clone(), url, table, terms });
        }
    }
    routes
}

fn url(
    table: &ReceiptTable,
    path: &Path,
    variables: &BTreeMap<String, String>,
    findings: &mut Findings<'_>,
) -> Option<ReceiptsUrl> {
    let url = table.url.fetch(variables).and_then(|text| ReceiptsUrl::parse(&text));
    url.map_err(|reason| findings.at(path, format!("`{path}` {reason}"))).ok()
}

fn name(table: &ReceiptTable, path: &Path, findings: &mut Findings<'_>) -> Option<TableName> {
    let name = table.table.parse::<TableName>();
    name.map_err(|error| findings.at(path, format!("`{path}` is wrong: {error}"))).ok()
}

fn format(document: &Document, path: &Path, findings: &mut Findings<'_>) {
    if document.record_format == Some(RecordFormat::One.number()) {
        let text = format!(
            "`{path}` needs record_format = 2, because records of format 1 do not name the window of an operation: write it once every \
             gateway on this store has this version"
        );
        findings.at_either(path, &Path::of("record_format"), text);
    }
}

fn terms(route: &Route, path: &Path, findings: &mut Findings<'_>) {
    let Some(Reconcile { attempts, backoff, max_backoff }) = &route.reconcile else { return };
    let path = path.key("reconcile");
    if route.receipts.is_none() {
        let text = format!(
            "`{path}` means nothing without [routes.receipts], because nothing is asked: name the receipt table, or remove it"
        );
        findings.at(&path, text);
    }
    if *attempts == 0 {
        let path = path.key("attempts");
        findings.at(&path, format!("`{path}` is 0, so nothing would ever be asked: write at least 1"));
    }
    if backoff.0.is_zero() || backoff.0 > max_backoff.0 {
        let text = format!(
            "`{path}.backoff` = \"{backoff}\" must be longer than \"0s\" and not longer than `{path}.max_backoff` = \"{max_backoff}\""
        );
        findings.at_either(&path.key("backoff"), &path.key("max_backoff"), text);
    }
}
